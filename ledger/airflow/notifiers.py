"""Notifiers with a condition: another notifier is called where the ledger has something to
report, and its templates have the facts as ``ledger``.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import asdict
from datetime import timedelta
from importlib import import_module
from typing import Any

from airflow.sdk import BaseNotifier

from ledger.airflow.links import page_of
from ledger.airflow.tasks import connected
from ledger.airflow.versions import with_deadlines
from ledger.core.declarations import seconds
from ledger.errors import DeclarationError
from ledger.pipeline.load import is_importable
from ledger.pipeline.pipeline import Pipeline

Notify = Callable[[Any], object]  # a notifier of Airflow, or any function of the context


class _Conditional(BaseNotifier):
    """Calls ``notify`` for the batch of the callback's run if ``facts`` returns some."""

    def __init__(self, *, notify: Notify, conn_id: str | None = None):
        super().__init__()
        if not callable(notify):
            raise DeclarationError(
                f"notify= of {type(self).__name__}: expected a notifier, or a function of the"
                f" context, found {notify!r}"
            )
        self._notify, self._conn_id = notify, conn_id

    def notify(self, context: Any) -> None:
        # For a run without tasks Airflow gives the DAG and the run's id, without the run.
        conf = getattr(context.get("dag_run"), "conf", None)
        database = connected(self._conn_id)
        try:
            batch_id = _batch_of(database, context["dag"].dag_id, context["run_id"], conf)
            facts = None if batch_id is None else self.facts(database, batch_id)
        finally:
            database.dispose()
        name = type(self).__name__
        if batch_id is None:
            self.log.warning(
                "%s has nothing to report: %s has no batch of run %s of %s. If another ledger has"
                " it, pass that one's conn_id to %s",
                name,
                "the environment's ledger" if self._conn_id is None else f"ledger {self._conn_id}",
                context["run_id"],
                context["dag"].dag_id,
                name,
            )
            return
        if facts is None:
            self.log.info("%s has nothing to report of batch %s", name, batch_id)
            return
        _send(self._notify, context, facts, self._conn_id)

    def in_ledger(self, conn_id: str | None) -> "_Conditional":
        """Return a notifier for the ledger of a connection, or this notifier if it has a connection
        or none is named.
        """
        if conn_id is None or self._conn_id is not None:
            return self
        other = copy(self)
        other._conn_id = conn_id
        return other

    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        """Render nothing: the templates of ``notify`` are rendered once it is called."""

    def facts(self, database: Any, batch_id: int) -> Any:
        """Return the facts to report of a batch, or None."""
        raise NotImplementedError


def in_ledger(callbacks: Any, conn_id: str | None) -> Any:
    """Return the callbacks of a DAG, one or a sequence, of which notifiers with a condition that
    have no connection get this one.
    """
    if isinstance(callbacks, list | tuple):
        return [in_ledger(callback, conn_id) for callback in callbacks]
    return callbacks.in_ledger(conn_id) if isinstance(callbacks, _Conditional) else callbacks


class WhenFailedRatio(_Conditional):
    """Calls ``notify`` when more than ``above``, a share from 0 to 1, of the records of a run's
    interval are failed or quarantined, and when its batch is on hold. For ``on_success_callback``
    and ``on_failure_callback`` of a pipeline's DAG.

    ``notify``: a notifier, whose templates have the facts as ``ledger``, or a function of the
    context. ``conn_id``: the connection of the ledger; default: that of ``pipeline_dag``, or the
    settings of the environment. Raises DeclarationError for arguments that cannot work.
    """

    def __init__(self, *, above: float, notify: Notify, conn_id: str | None = None):
        super().__init__(notify=notify, conn_id=conn_id)
        if not 0 <= above < 1:
            raise DeclarationError(
                f"above={above} of WhenFailedRatio: expected a share of the records, from 0 to"
                " less than 1, for example 0.01"
            )
        self._above = above

    def facts(self, database: Any, batch_id: int) -> Any:
        """Return the facts if too many records are failed or quarantined, or if the batch is on
        hold; otherwise None.
        """
        from ledger.batch.outcome.alerts import failed_ratio

        return failed_ratio(database, batch_id, self._above)


class WhenQuarantineGrows(_Conditional):
    """Calls ``notify`` when the records that the pipeline quarantined ``within`` a time, such as
    ``"1d"``, exceed ``by``. It fires once and re-arms below the limit. Accepted records do not
    count. For callbacks as of ``WhenFailedRatio``.
    """

    def __init__(
        self,
        *,
        by: int,
        within: str | float | timedelta,
        notify: Notify,
        conn_id: str | None = None,
    ):
        super().__init__(notify=notify, conn_id=conn_id)
        if by < 0:
            raise DeclarationError(
                f"by={by} of WhenQuarantineGrows: expected a number of records, 0 or more"
            )
        self._by, self._within = by, timedelta(seconds=seconds(within))

    def facts(self, database: Any, batch_id: int) -> Any:
        """Return the facts if this batch made the quarantine grow beyond the limit; otherwise
        None.
        """
        from ledger.batch.outcome.alerts import quarantine_growth

        return quarantine_growth(database, batch_id, self._by, self._within)


def near_deadline(
    pipeline: Pipeline,
    *,
    before: str | float | timedelta,
    notify: Any,
    conn_id: str | None = None,
) -> Any:
    """Return a value for ``deadline=`` of the pipeline's DAG: Airflow calls ``notify`` if a run's
    batch is still open the time ``before`` it reaches ``max_batch_age``. Airflow counts from the
    time when the run was queued, shortly before its batch was opened.

    ``notify``: Airflow's callback, as ``SyncCallback(SmtpNotifier, kwargs={"to": ...})``; the
    notifier's templates have the facts as ``ledger``. ``conn_id``: the connection of the ledger;
    default: the settings of the environment. Raises DeclarationError unless ``before`` is
    less than ``max_batch_age``, and the callback one that a worker runs. Needs Airflow 3.2.
    """
    sdk = with_deadlines()
    whole, early = pipeline.max_batch_age_seconds, seconds(before)
    if not 0 < early < whole:
        raise DeclarationError(
            f"before={before!r} of near_deadline: expected less than max_batch_age of pipeline"
            f" {pipeline.name!r}, which is {timedelta(seconds=whole)}, and more than 0"
        )
    if not isinstance(notify, sdk.SyncCallback):
        raise DeclarationError(
            f"notify= of near_deadline: expected SyncCallback(...) of a notifier, found {notify!r}"
        )
    if not is_importable(notify.path):
        raise DeclarationError(
            f"notify= of near_deadline: {notify.path} is declared in a DAG file, which no other"
            " process can import: declare it in a module on PYTHONPATH"
        )
    return sdk.DeadlineAlert(
        reference=sdk.DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(seconds=whole - early),
        callback=sdk.SyncCallback(
            tell_if_open,
            kwargs={"notify": notify.path, "options": notify.kwargs, "conn_id": conn_id},
            executor=notify.executor,
        ),
        name=f"{pipeline.name}: a batch is near its deadline",
    )


def tell_if_open(
    notify: str, options: dict[str, Any], context: Any, conn_id: str | None = None
) -> None:
    """Call a callback if the run's batch is still open. Airflow runs this function at the time that
    ``near_deadline`` set.

    ``notify``: import path of the callback, which is a notifier's class or a function.
    ``options``: the arguments of the notifier's class.
    """
    from ledger.batch.outcome.alerts import still_open

    run = context["dag_run"]
    database = connected(conn_id)
    try:
        # The run as Airflow's API gives it, whose name of the id differs from other contexts.
        batch_id = _batch_of(database, run["dag_id"], run["dag_run_id"], run["conf"])
        facts = None if batch_id is None else still_open(database, batch_id)
    finally:
        database.dispose()
    if facts is None:
        return
    module, _, name = notify.rpartition(".")
    callback = getattr(import_module(module), name)
    if isinstance(callback, type):
        _send(callback(**options), context, facts, conn_id)
    else:
        _send(lambda full: callback(**options, context=full), context, facts, conn_id)


def _batch_of(database: Any, dag_id: str, run_id: str, conf: dict[str, Any] | None) -> int | None:
    """Return the batch that a run opened, or the one that its conf names."""
    from ledger.batch.outcome.alerts import batch_of_run

    number = (conf or {}).get("batch")
    return batch_of_run(database, dag_id, run_id) if number is None else int(number)


def _send(notify: Notify, context: Any, facts: Any, conn_id: str | None) -> None:
    """Call a copy of a notifier, because rendering the templates changes the notifier."""
    url = page_of(facts.batch_id, conn_id)
    full_context = {**context, "ledger": {**asdict(facts), "url": url}}
    if not hasattr(full_context.get("dag"), "get_template_env"):
        # In dag.test: a serialized DAG, with which nothing can be rendered.
        full_context.pop("dag", None)
    copy(notify)(full_context)
