"""The DAGs of all pipelines: the sweeper, and the forms that replay and accept."""

import logging
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import DAG, Asset, Param, task

from ledger.airflow import metrics
from ledger.airflow.links import REPLAY_DAG, SWEEPER_DAG, dag_of
from ledger.airflow.pipelines import START, selection
from ledger.airflow.sensors import COMPLETED, announce
from ledger.airflow.tasks import connected
from ledger.airflow.versions import (
    AirflowFailException,
    AirflowSkipException,
    DagRunTriggerException,
    trigger,
    triggering_user,
)
from ledger.core.commands import ACCEPT_DAG
from ledger.core.logs import about
from ledger.core.text import quantity
from ledger.errors import InputError

REPLAY_WANTED = Asset("x-ledger://replay-wanted")
MOST_EXPIRED = 200  # batches whose files one run removes, because the next sweep waits for it
MOST_LOOKED_AT = 500  # old batches with their replays that one run checks, in turns
MOST_ERRORS = 5
_OPTIONS = {"catchup": False, "is_paused_upon_creation": False, "tags": ["ackledger"]}
_log = logging.getLogger(__name__)


def replay_wanted(conn_id: str | None) -> Asset:
    """Return the asset by which the sweeper of a connection's ledger asks for replays."""
    return REPLAY_WANTED if conn_id is None else Asset(f"{REPLAY_WANTED.uri}/{conn_id}")


def sweeper_dag(*, schedule: str | None, conn_id: str | None = None, **dag_options: Any) -> DAG:
    """Return the DAG that sweeps on ``schedule``: it settles batches that no driver settled,
    expires those whose driver died, and starts a run where a publish, a combine, a state or a
    callback is overdue. It also asks for replays for pipelines with ``auto_replay``, and removes
    files that nothing needs for pipelines with ``keep``.

    ``conn_id``: the connection of the ledger, whose name the DAG's id ends in; default: the
    settings of the environment.
    """
    options = {**_OPTIONS, "max_active_runs": 1, **dag_options}
    dag_id = dag_of(SWEEPER_DAG, conn_id)
    with DAG(dag_id, schedule=schedule, start_date=START, **options) as dag:
        swept: Any = sweep(conn_id)
        ask_for_replay.override(outlets=[replay_wanted(conn_id)])(swept["replays"], conn_id)
        finish.expand(run=overdue(swept["overdue"]))
        report(swept["errors"])
        swept >> gc(conn_id)
    return dag


@task
def sweep(conn_id: str | None = None) -> dict[str, list[Any]]:
    """Sweep once, and return the batches whose pipeline wants a replay, the runs that are overdue,
    and the errors of batches that could not be settled.
    """
    from ledger.batch.upkeep.sweeper import sweep_once

    database = connected(conn_id)
    swept = sweep_once(database)
    for settlement in swept.settlements:
        with about(batch_id=settlement.batch_id):
            _log.info("%s", settlement)
    metrics.of_ledger(database, [batch.batch_id for batch in swept.overdue])
    hour = f"{datetime.now(UTC):%Y%m%dT%H}"  # a batch has one run an hour, in case that one fails
    return {
        "replays": [asked.batch_id for asked in swept.replays],
        "overdue": [
            {
                "dag_id": batch.dag_id,
                "run_id": f"after__{batch.batch_id}__{hour}",
                "conf": {"batch": batch.batch_id, "conn_id": conn_id},
                "note": f"does what follows batch {batch.batch_id}, which was decided without its"
                " run",
            }
            for batch in swept.overdue
        ],
        "errors": [f"batch {batch}: {error}" for batch, error in swept.errors.items()],
    }


@task
def ask_for_replay(batches: Any, conn_id: str | None = None, *, outlet_events: Any = None) -> None:
    """Publish the asset event that starts ledger_replay. Skip the task if no record has failed."""
    if not batches:
        raise AirflowSkipException("no pipeline wants a replay")
    outlet_events[replay_wanted(conn_id)].extra = {"batches": batches}


@task
def overdue(runs: Any) -> list[Any]:
    """Return the overdue runs unchanged: tasks can be mapped only over the whole output of a
    task.
    """
    return list(runs)


@task
def finish(run: Any) -> None:
    """Trigger a run of a batch's DAG, which finds the batch decided and does its follow-ups."""
    raise _trigger(**run)


@task(trigger_rule="all_done")
def gc(conn_id: str | None = None) -> dict[str, Any]:
    """Delete files that nothing needs any more. Return their number and bytes by kind."""
    from ledger.batch.upkeep.retention import GcOptions, gc_once

    collected = gc_once(connected(conn_id), GcOptions(most=MOST_EXPIRED, looks=MOST_LOOKED_AT))
    removed = {kind: asdict(size) for kind, size in collected.removed.items() if size.files}
    _log.info("removed: %s", removed)
    if collected.errors:
        errors = [f"batch {batch}: {error}" for batch, error in collected.errors.items()]
        raise AirflowFailException("; ".join(errors[:MOST_ERRORS]))
    return removed


@task
def report(errors: Any) -> None:
    """Fail the task if batches could not be settled, and name them."""
    if errors:
        raise AirflowFailException("; ".join(errors))


def replay_dag(*, conn_id: str | None = None, **dag_options: Any) -> DAG:
    """Return the DAG that triggers the DAGs of pipelines to replay failed records. Its parameters
    select the records. ``conn_id``: as of ``sweeper_dag``.
    """
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
        "from_source": _flag("Read them again from their source, by key."),
        "release": _flag("First let that batch settle, which is on hold."),
    }
    dag_id, wanted = dag_of(REPLAY_DAG, conn_id), replay_wanted(conn_id)
    with DAG(dag_id, schedule=[wanted], start_date=START, params=params, **options) as dag:
        replay.expand(run=find(conn_id))
    return dag


@task
def find(conn_id: str | None = None, **context: Any) -> list[dict[str, Any]]:
    """Release the batch if the form asks for that, and return the replay runs to trigger, one per
    original batch with matching failed records.

    Skips the task if no failed record matches. Raises AirflowFailException for a name in the form
    that the ledger does not know.
    """
    from ledger.batch.records.filters import require_names

    params, database = context["params"], connected(conn_id)
    if params["release"]:
        _release(database, params["batch"])
    events = context.get("triggering_asset_events") or {}
    named = [event.extra.get("batches", []) for group in events.values() for event in group]
    only = {batch for batches in named for batch in batches} if named else None
    runs = _replay_runs(database, params, only, context["dag_run"].run_id, conn_id)
    if not runs:
        names = {**params, "batch_id": params["batch"]}
        try:
            database.transact(lambda c: require_names(c, names))
        except InputError as exc:
            raise AirflowFailException(str(exc)) from exc
        raise AirflowSkipException("nothing to replay: no failed record matches")
    return runs


@task
def replay(run: Any) -> None:
    """Trigger a replay run of one pipeline's DAG."""
    raise _trigger(**run)


def _release(database: Any, batch: int | None) -> None:
    """Let a batch on hold settle. Raises AirflowFailException unless it does."""
    from ledger.batch.manual_actions import release

    if batch is None:
        raise AirflowFailException("which batch is to be released? Give its number as batch")
    released = release(database, batch)
    _log.info("%s", released)
    if released.status != "settled":
        raise AirflowFailException(f"batch {batch} is {released.status.words}: {released.reason}")


def _replay_runs(
    database: Any,
    params: dict[str, Any],
    only: set[int] | None,
    run_id: str,
    conn_id: str | None,
) -> list[dict[str, Any]]:
    """Return the runs that replay the records selected by the form, one for each original batch.

    ``only``: the batches named by asset events; None: all batches.
    ``conn_id``: the connection of the ledger, which the runs have to be of.
    """
    from ledger.batch.outcome.readings import get_batch
    from ledger.batch.replay_matches import left_out, matching_messages

    criteria = selection(params)
    asked = (database, params["pipeline"], params["batch"], criteria)
    counts: Counter[int] = Counter()
    for row in matching_messages(*asked):
        if only is None or row.batch_id in only:
            counts[row.batch_id] += row.records
    runs = []
    for number, records in counts.items():
        batch = get_batch(database, number)
        conf = {"replay_of": number, **criteria.as_json(), "conn_id": conn_id}
        what = quantity(records, "record")
        _log.info("replay %s of batch %s by %s: %s", what, number, batch.replay_dag, conf)
        runs.append(
            {
                "dag_id": batch.replay_dag,
                "run_id": f"replay_{number}__{run_id}",
                "conf": conf,
                "note": f"replays {what} of batch {number}, asked by {run_id}",
            }
        )
    for sentence in left_out(*asked):
        _log.info("%s", sentence)
    return runs


def _optional(kind: str, description: str) -> Param:
    return Param(None, type=["null", kind], description=description)


def _flag(description: str) -> Param:
    return Param(False, type="boolean", description=description)


def accept_dag(*, conn_id: str | None = None, **dag_options: Any) -> DAG:
    """Return the DAG with which a person accepts the quarantined records of a batch. The last task
    of the batch's run is green afterwards. ``conn_id``: as of ``sweeper_dag``.
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
    dag_id = dag_of(ACCEPT_DAG, conn_id)
    with DAG(dag_id, schedule=None, start_date=START, params=params, **options) as dag:
        accept(conn_id)
    return dag


@task(outlets=[COMPLETED])
def accept(conn_id: str | None = None, **context: Any) -> dict[str, Any]:
    """Accept all records of a batch that are quarantined now, in the name of the user who triggered
    the run.
    """
    from ledger.batch.manual_actions import accept as accept_batch

    params, run = context["params"], context["dag_run"]
    by = triggering_user(run) or f"run {run.run_id} of {run.dag_id}"
    accepted = accept_batch(connected(conn_id), params["batch"], by=by, reason=params["reason"])
    _log.info("%s by %s", accepted, by)
    announce(params["batch"], context["outlet_events"], conn_id)
    return asdict(accepted)


def _trigger(dag_id: str, run_id: str, conf: dict[str, Any], note: str) -> DagRunTriggerException:
    """Return the exception that triggers a run, as TriggerDagRunOperator raises it. Importing that
    operator would take 0.3 s of every parse.
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
