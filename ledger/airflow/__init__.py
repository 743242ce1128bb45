"""Airflow's face: a pipeline as a DAG, the sweeper, and the forms that replay and accept."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ledger.airflow.maintenance import REPLAY_WANTED, accept_dag, replay_dag, sweeper_dag
    from ledger.airflow.pipelines import pipeline_dag

__all__ = ["REPLAY_WANTED", "accept_dag", "pipeline_dag", "replay_dag", "sweeper_dag"]


def __getattr__(name: str) -> Any:
    """What is imported from here, when it is asked for: each process of Airflow loads the
    plugin, and few a pipeline.
    """
    if name in __all__:
        module = "pipelines" if name == "pipeline_dag" else "maintenance"
        return getattr(import_module(f"ledger.airflow.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
