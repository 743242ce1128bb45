"""The DAGs beside the pipelines': the sweeper, and the forms that replay and accept."""

import logging
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import DAG, Asset, Param, task

from ledger.airflow import metrics
from ledger.airflow.links import ACCEPT_DAG, REPLAY_DAG
from ledger.airflow.pipelines import START, selection
from ledger.airflow.submitting import connected
from ledger.airflow.versions import (
    AirflowFailException,
    AirflowSkipException,
    DagRunTriggerException,
    trigger,
    triggering_user,
)
from ledger.airflow.waiting import COMPLETED, announce
from ledger.core.logs import about
from ledger.core.text import quantity
from ledger.errors import InputError

REPLAY_WANTED = Asset("x-ledger://replay-wanted")
MOST_EXPIRED = 200  # batches whose files go in one run: the next sweep waits for it
MOST_LOOKED_AT = 500  # old families, of which each has its turn
MOST_ERRORS = 5
_OPTIONS = {"catchup": False, "is_paused_upon_creation": False, "tags": ["ackledger"]}
_log = logging.getLogger(__name__)


def sweeper_dag(*, schedule: str | None, **dag_options: Any) -> DAG:
    """Sweeps on ``schedule``: settles batches that no driver settled, expires what died, and starts
    a run where a publish, a combine, a state or a callback is overdue. It also asks for replays for
    pipelines with ``auto_replay``, and removes files that nothing needs for pipelines with
    ``keep``.
    """
    options = {**_OPTIONS, "max_active_runs": 1, **dag_options}
    with DAG("ledger_sweeper", schedule=schedule, start_date=START, **options) as dag:

        @task
        def sweep() -> dict[str, list[Any]]:
            """Sweep once, and return the batches whose pipeline wants a replay, those with
            something pending, and the errors of those that could not be settled.
            """
            from ledger.batch.upkeep.sweeper import sweep_once

            database = connected()
            swept = sweep_once(database)
            for settlement in swept.settlements:
                with about(batch_id=settlement.batch_id):
                    _log.info("%s", settlement)
            metrics.of_ledger(database, [batch.batch_id for batch in swept.overdue])
            errors = [f"batch {batch}: {error}" for batch, error in swept.errors.items()]
            return {
                "replays": [asked.batch_id for asked in swept.replays],
                "overdue": [_overdue(batch.batch_id, batch.dag_id) for batch in swept.overdue],
                "errors": errors,
            }

        @task(outlets=[REPLAY_WANTED])
        def ask_for_replay(batches: Any, *, outlet_events: Any = None) -> None:
            """Publish the asset event that starts ledger_replay; skipped if nothing has failed."""
            if not batches:
                raise AirflowSkipException("no pipeline wants a replay")
            outlet_events[REPLAY_WANTED].extra = {"batches": batches}

        @task
        def overdue(batches: Any) -> list[Any]:
            """Return the batches of which runs left something pending, as a list: only an output of
            its own can be mapped over.
            """
            return list(batches)

        @task
        def finish(run: Any) -> None:
            """Trigger a run of a batch's DAG that finds it decided, and does what follows."""
            raise _trigger(**run)

        @task(trigger_rule="all_done")
        def gc() -> dict[str, Any]:
            """Remove files that nothing needs any more; how many, and their bytes, by kind."""
            return _collected()

        @task
        def report(errors: Any) -> None:
            """Fail and name the batches that could not be settled, if there are any."""
            if errors:
                raise AirflowFailException("; ".join(errors))

        swept: Any = sweep()
        ask_for_replay(swept["replays"])
        finish.expand(run=overdue(swept["overdue"]))
        report(swept["errors"])
        swept >> gc()
    return dag


def _trigger(dag_id: str, run_id: str, conf: dict[str, Any], note: str) -> DagRunTriggerException:
    """Return the exception that TriggerDagRunOperator raises; importing that operator takes 0.3 s
    of every parse.
    """
    return trigger(
        trigger_dag_id=dag_id,
        dag_run_id=run_id,
        conf=conf,
        logical_date=None,
        reset_dag_run=False,
        skip_when_already_exists=True,
        wait_for_completion=False,
        allowed_states=["success"],
        failed_states=["failed"],
        poke_interval=60,
        deferrable=False,
        note=note,
    )


def replay_dag(**dag_options: Any) -> DAG:
    """Finds the batches with failed records and triggers their pipelines' DAGs to replay them."""
    options = {**_OPTIONS, **dag_options}
    params = {
        "pipeline": _optional("string", "Only this pipeline."),
        "batch": _optional("integer", "Only this original batch."),
        "reason": _optional("string", "Only records that failed with this reason."),
        "step": _optional("string", "Only records that failed in this step."),
        "record": _optional("integer", "Only this record."),
        "source": _optional("string", "Only records of this source."),
        "since": _optional("string", "Only failed since (ISO date)."),
        "until": _optional("string", "Only failed before (ISO date)."),
        "quarantined": _flag(
            "Instead quarantined records, with a new budget; not those that a person accepted."
        ),
        "accepted": _flag(
            "Instead, or as well as quarantined ones, records that a person accepted."
        ),
        "kept_back": _flag(
            "Records kept back because their unit failed too often, with a new budget."
        ),
        "from_source": _flag("Read them again from their source, by key."),
        "release": _flag("First let that batch settle, which is on hold."),
    }
    with DAG(
        REPLAY_DAG, schedule=[REPLAY_WANTED], start_date=START, params=params, **options
    ) as dag:

        @task
        def find(**context: Any) -> list[dict[str, Any]]:
            """One trigger per original batch with failed records."""
            if context["params"]["release"]:
                _release(context["params"]["batch"])
            return _triggers(context["params"], _asked_for(context), context["dag_run"].run_id)

        @task
        def replay(run: Any) -> None:
            """Trigger one pipeline's DAG."""
            raise _trigger(**run)

        replay.expand(run=find())
    return dag


def _optional(kind: str, description: str) -> Param:
    return Param(None, type=["null", kind], description=description)


def _flag(description: str) -> Param:
    return Param(False, type="boolean", description=description)


def accept_dag(**dag_options: Any) -> DAG:
    """Accepts the quarantined records of a batch, by hand: its runs' last task is green
    afterwards.
    """
    options = {**_OPTIONS, **dag_options}
    params = {
        "batch": Param(
            type="integer", description="The batch whose quarantined records to accept."
        ),
        "reason": Param(
            type="string",
            minLength=1,
            description="Why they may stay out; kept in the ledger.",
        ),
    }
    with DAG(ACCEPT_DAG, schedule=None, start_date=START, params=params, **options) as dag:

        @task(outlets=[COMPLETED])
        def accept(**context: Any) -> dict[str, Any]:
            """Accept what is quarantined by now, in the name of the user who triggered the run."""
            from dataclasses import asdict

            from ledger.batch.acceptance import accept as accept_batch

            params, run = context["params"], context["dag_run"]
            by = triggering_user(run) or f"run {run.run_id} of {run.dag_id}"
            accepted = accept_batch(connected(), params["batch"], by=by, reason=params["reason"])
            _log.info("%s by %s", accepted, by)
            announce(params["batch"], context["outlet_events"])
            return asdict(accepted)

        accept()
    return dag


def _collected() -> dict[str, Any]:
    from dataclasses import asdict

    from ledger.batch.upkeep.retention import GcOptions, gc_once

    collected = gc_once(connected(), GcOptions(most=MOST_EXPIRED, looks=MOST_LOOKED_AT))
    removed = {kind: asdict(size) for kind, size in collected.removed.items() if size.files}
    _log.info("removed: %s", removed)
    if collected.errors:
        errors = [f"batch {batch}: {error}" for batch, error in collected.errors.items()]
        raise AirflowFailException("; ".join(errors[:MOST_ERRORS]))
    return removed


def _overdue(batch_id: int, dag_id: str) -> dict[str, Any]:
    """One run an hour at most: one that failed, or came too early, is followed by another."""
    run_id = f"after__{batch_id}__{datetime.now(UTC):%Y%m%dT%H}"
    note = f"does what follows batch {batch_id}, which was decided without its run"
    return {"dag_id": dag_id, "run_id": run_id, "conf": {"batch": batch_id}, "note": note}


def _asked_for(context: Any) -> set[int] | None:
    """The batches that asset events name; None for a run by hand."""
    events = context.get("triggering_asset_events") or {}
    named = [event.extra.get("batches", []) for group in events.values() for event in group]
    return {batch for batches in named for batch in batches} if named else None


def _release(batch: int | None) -> None:
    from ledger.batch.interventions import release

    if batch is None:
        raise AirflowFailException("which batch is to be released? Give its number as batch")
    released = release(connected(), batch)
    _log.info("%s", released)
    if released.status != "settled":
        raise AirflowFailException(f"batch {batch} is {released.status.words}: {released.reason}")


def _triggers(params: dict[str, Any], only: set[int] | None, run_id: str) -> list[dict[str, Any]]:
    from ledger.batch.outcome.readings import get_batch
    from ledger.batch.records.filters import require_names
    from ledger.batch.replay_matches import left_out, matching_messages

    database, criteria = connected(), selection(params)
    asked = (database, params["pipeline"], params["batch"], criteria)
    counts: Counter[int] = Counter()
    for row in matching_messages(*asked):
        if only is None or row.batch_id in only:
            counts[row.batch_id] += row.records
    triggers = []
    for number, records in counts.items():
        batch = get_batch(database, number)
        conf = {"replay_of": number, **criteria.as_json()}
        what = quantity(records, "record")
        _log.info("replay %s of batch %s by %s: %s", what, number, batch.replay_dag, conf)
        triggers.append(
            {
                "dag_id": batch.replay_dag,
                "run_id": f"replay_{number}__{run_id}",
                "conf": conf,
                "note": f"replays {what} of batch {number}, asked by {run_id}",
            }
        )
    for sentence in left_out(*asked):
        _log.info("%s", sentence)
    if not triggers:
        names = {**params, "batch_id": params["batch"]}
        try:
            database.transact(lambda c: require_names(c, names))
        except InputError as exc:
            raise AirflowFailException(str(exc)) from exc
        raise AirflowSkipException("nothing to replay: no failed record matches")
    return triggers
