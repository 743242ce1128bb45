"""Airflow's face: a pipeline as a DAG, the sweeper, and the replay form."""

from ledger.airflow.maintenance import REPLAY_WANTED, replay_dag, sweeper_dag
from ledger.airflow.pipelines import pipeline_dag

__all__ = ["REPLAY_WANTED", "pipeline_dag", "replay_dag", "sweeper_dag"]
