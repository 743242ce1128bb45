"""Airflow's face: a pipeline as a DAG, the sweeper, and the forms that replay and accept."""

from ledger.airflow.maintenance import REPLAY_WANTED, accept_dag, replay_dag, sweeper_dag
from ledger.airflow.pipelines import pipeline_dag

__all__ = ["REPLAY_WANTED", "accept_dag", "pipeline_dag", "replay_dag", "sweeper_dag"]
