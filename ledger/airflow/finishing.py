"""Tasks after the steps: settle, publish, read on; and how a task starts a run of another DAG."""

import logging
from typing import Any

from airflow.sdk import task
from airflow.sdk.exceptions import AirflowSkipException, DagRunTriggerException

from ledger.airflow.submitting import connected, decided_batch
from ledger.errors import LedgerError
from ledger.settings import Settings

_log = logging.getLogger(__name__)


def settle_task() -> Any:
    """Decides the batch, or says what was decided of it before."""

    @task(task_id="settle")
    def settle(**context: Any) -> None:
        """Decide every record of the batch: acked, or failed with its stage and reason."""
        from ledger.payloads import try_to_keep
        from ledger.replaced import remove_replaced
        from ledger.settlement import settle_once

        database = connected()
        done = settle_once(database, context["ti"].xcom_pull(task_ids="open"))
        assert done is not None
        if not done.status.decided:
            raise LedgerError(f"batch {done.batch_id} is {done.status}: {done.reason}")
        _log.info("%s", done)
        try_to_keep(database, done.batch_id)
        remove_replaced(database, done.batch_id)

    return settle()


def publish_task(target: str) -> Any:
    """Publishes the batch, even after a task before it failed."""

    @task(task_id="publish", trigger_rule="all_done")
    def publish(**context: Any) -> None:
        """Publish what is acked; of a batch that ran at least once it is visible already."""
        from ledger.loading import load_pipeline
        from ledger.payloads import try_to_keep
        from ledger.publishing import publish as publish_batch

        database = connected()
        batch_id = decided_batch(context, database)
        try_to_keep(database, batch_id)  # the sweeper may have settled it, far from the storage
        publish_batch(database, Settings(), load_pipeline(target), batch_id)

    return publish()


def next_part_task() -> Any:
    """Reads on in an interval of which this run has read a part."""

    @task(task_id="next_part", trigger_rule="all_done")
    def next_part(**context: Any) -> None:
        """Trigger another run of this DAG for what is left of the interval, whether or not all sinks show this
        part; skipped if nothing is left, or the batch is not settled."""
        from ledger.queries import batches, claims
        from ledger.summary import summarize

        database = connected()
        batch_id = decided_batch(context, database)
        unread = summarize(database, batch_id).unread
        if not unread:
            raise AirflowSkipException("the interval is read to its end")
        batch = database.transact(lambda c: batches.get_batch(c, batch_id))
        run_id = f"part__{batch_id}"
        tried = database.transact(lambda c: claims.given_up(c, batch.dag_id, run_id))
        run_id = f"{run_id}__{tried}" if tried else run_id
        _log.info("%s records of the interval are left: run %s reads on", unread, run_id)
        interval = {
            "interval_start": batch.interval_start.isoformat(),
            "interval_end": batch.interval_end.isoformat(),
        }
        conf = {**interval, "guarantee": batch.guarantee.value, **batch.params}
        note = f"reads on in the interval of batch {batch_id}: {unread:,} records are left"
        raise trigger(batch.dag_id, run_id, conf, note)

    return next_part()


def trigger(dag_id: str, run_id: str, conf: dict[str, Any], note: str) -> DagRunTriggerException:
    """What TriggerDagRunOperator raises; importing that operator takes 0.3 s of every parse."""
    return DagRunTriggerException(
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
