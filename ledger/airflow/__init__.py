"""Airflow's face: a pipeline as a DAG, the sweeper, the forms that replay and accept, and what
downstream DAGs use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ledger.airflow.maintenance import REPLAY_WANTED, accept_dag, replay_dag, sweeper_dag
    from ledger.airflow.notifiers import WhenFailedRatio, WhenQuarantineGrows, near_deadline
    from ledger.airflow.pipelines import pipeline_dag
    from ledger.airflow.submitting import SparkSubmit
    from ledger.airflow.waiting import LedgerCompleteSensor, LedgerGate, interval_complete

__all__ = [
    "REPLAY_WANTED",
    "LedgerCompleteSensor",
    "LedgerGate",
    "SparkSubmit",
    "WhenFailedRatio",
    "WhenQuarantineGrows",
    "accept_dag",
    "interval_complete",
    "near_deadline",
    "pipeline_dag",
    "replay_dag",
    "sweeper_dag",
]
_PLACES = {
    "pipeline_dag": "pipelines",
    "SparkSubmit": "submitting",
    **dict.fromkeys(("LedgerCompleteSensor", "LedgerGate", "interval_complete"), "waiting"),
    **dict.fromkeys(("WhenFailedRatio", "WhenQuarantineGrows", "near_deadline"), "notifiers"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: each process of Airflow loads the plugin,
    and few a pipeline. Raises AttributeError for any other name.
    """
    if name in __all__:
        # Not above: what it imports is nothing that the plugin needs.
        import_module("ledger.core.extras").require_package("airflow", "ledger.airflow")
        module = _PLACES.get(name, "maintenance")
        return getattr(import_module(f"ledger.airflow.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
