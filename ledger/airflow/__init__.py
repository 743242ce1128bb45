"""The public names for DAG files: a pipeline as a DAG, the sweeper, the forms that replay and
accept, and sensors and notifiers for other DAGs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ledger.airflow.maintenance import REPLAY_WANTED, accept_dag, replay_dag, sweeper_dag
    from ledger.airflow.notifiers import WhenFailedRatio, WhenQuarantineGrows, near_deadline
    from ledger.airflow.pipelines import pipeline_dag
    from ledger.airflow.sensors import (
        LedgerCompleteSensor,
        LedgerGate,
        interval_complete,
        interval_partitions,
    )
    from ledger.airflow.spark_tasks import SparkSubmit

__all__ = [
    "REPLAY_WANTED",
    "LedgerCompleteSensor",
    "LedgerGate",
    "SparkSubmit",
    "WhenFailedRatio",
    "WhenQuarantineGrows",
    "accept_dag",
    "interval_complete",
    "interval_partitions",
    "near_deadline",
    "pipeline_dag",
    "replay_dag",
    "sweeper_dag",
]
_PLACES = {
    "pipeline_dag": "pipelines",
    "SparkSubmit": "spark_tasks",
    **dict.fromkeys(("LedgerCompleteSensor", "LedgerGate"), "sensors"),
    **dict.fromkeys(("interval_complete", "interval_partitions"), "sensors"),
    **dict.fromkeys(("WhenFailedRatio", "WhenQuarantineGrows", "near_deadline"), "notifiers"),
}


def __getattr__(name: str) -> Any:
    """Import a public name on first access. Every process of Airflow imports the plugin, but few
    processes need a pipeline. Raises AttributeError for any other name.
    """
    if name in __all__:
        # Not imported above, because the plugin does not need it.
        import_module("ledger.core.requirements").require_package("airflow", "ledger.airflow")
        module = _PLACES.get(name, "maintenance")
        return getattr(import_module(f"ledger.airflow.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
