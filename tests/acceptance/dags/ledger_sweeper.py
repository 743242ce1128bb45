"""The sweeper, by hand: a test decides when it runs."""

from ledger.airflow import sweeper_dag

dag = sweeper_dag(schedule=None)
