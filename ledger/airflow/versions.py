# mypy: disable-error-code="assignment, attr-defined, misc, no-redef"
"""Differences between Airflow's versions from 3.1 on: names that have moved, and names that some
versions lack. No other module asks for the version.
"""

import re
from importlib import metadata
from inspect import signature
from typing import Any

from ledger.errors import DeclarationError

try:
    from airflow.sdk import CronDataIntervalTimetable
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowRescheduleException,
        AirflowSkipException,
        DagRunTriggerException,
    )
except ImportError:  # before 3.2
    from airflow.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowRescheduleException,
        AirflowSkipException,
        DagRunTriggerException,
    )
    from airflow.timetables.interval import CronDataIntervalTimetable

# ``Permanent`` ends a task, whatever retries it has left. Airflow logs an exit in one line, and a
# policy stops the retries. Without policies only Airflow's own exception does, with a traceback.
try:
    from airflow.sdk import RetryDecision, RetryPolicy

    HAS_POLICIES = True
    Permanent: Any = SystemExit
except ImportError:  # before 3.3
    RetryDecision = RetryPolicy = object
    HAS_POLICIES = False
    Permanent = AirflowFailException

# A task can name the partitions of an asset, and DAGs can roll them up.
_VERSION = tuple(int(part) for part in re.findall(r"\d+", metadata.version("apache-airflow-core")))
HAS_PARTITIONS = _VERSION[:3] >= (3, 3, 1)

__all__ = [
    "HAS_PARTITIONS",
    "HAS_POLICIES",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowRescheduleException",
    "AirflowSkipException",
    "CronDataIntervalTimetable",
    "DagRunTriggerException",
    "Permanent",
    "RetryDecision",
    "RetryPolicy",
    "configuration",
    "mask_secret",
    "send_gauge",
    "trigger",
    "triggering_user",
    "with_deadlines",
]


def configuration() -> Any:
    """Return Airflow's configuration."""
    try:
        from airflow.sdk.configuration import conf
    except ImportError:  # before 3.2
        from airflow.configuration import conf
    return conf


def mask_secret(secret: str) -> None:
    """Mask a secret in the log of this process and of its supervisor, if Airflow offers that."""
    try:
        from airflow.sdk.log import mask_secret as mask
    except ImportError:
        return
    mask(secret)


def send_gauge(name: str, value: float, tags: dict[str, Any] | None = None) -> None:
    """Send a metric to where Airflow sends its own."""
    try:
        from airflow.sdk.observability.stats import Stats
    except ImportError:  # before 3.2
        from airflow.stats import Stats
    Stats.gauge(name, value, tags=tags)


def trigger(*, note: str, **options: Any) -> DagRunTriggerException:
    """Return the exception with which a task triggers a run. Airflow 3.2 and later also set the
    run's note.
    """
    if "note" in signature(DagRunTriggerException).parameters:
        options["note"] = note
    return DagRunTriggerException(**options)


def triggering_user(run: Any) -> str | None:
    """Return the user who triggered a run by hand. None if no user did, or if Airflow is older than
    3.2.
    """
    return getattr(run, "triggering_user_name", None)


def with_deadlines() -> Any:
    """Return Airflow's SDK for deadlines, whose callbacks run in a worker. Raises DeclarationError
    before Airflow 3.2.
    """
    from airflow import sdk

    if "SyncCallback" not in sdk.__all__:
        raise DeclarationError(
            "near_deadline: expected Airflow 3.2 or later, whose workers run such a callback: leave"
            " it out, or update Airflow"
        )
    return sdk
