"""Replays failed records: by hand with a form, or when the sweeper asks for it."""

from ledger.airflow import replay_dag

dag = replay_dag()
