"""The library's replay form, as it is."""

from ledger.airflow import replay_dag

dag = replay_dag()
