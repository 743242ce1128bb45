"""Decides what can be decided, every few minutes, and asks for automatic replays."""

from ledger.airflow import sweeper_dag

dag = sweeper_dag(schedule="*/5 * * * *")
