"""The library's sweeper and replay form, as they are."""

from ledger.airflow import replay_dag, sweeper_dag

sweeper = sweeper_dag(schedule="* * * * *")
replays = replay_dag()
