"""The program of a driver: one step of one batch, what follows its settlement, or all of it.

spark-submit runs it, or Python alone where Spark is a Connect server.
The database's address comes from ACKLEDGER_DATABASE_URL or the embedded server's folder, its
password from PGPASSFILE: never from an argument. ACKLEDGER_CONN_ID names the connection of Airflow
that the address is from.
"""

import sys

if __name__ == "__main__":
    # Python put this folder first, where requests.py and others are not what libraries expect.
    sys.path.pop(0)

import argparse
import logging
import os
import signal
from contextlib import suppress
from functools import partial
from uuid import UUID

from pyspark.sql import SparkSession

from ledger.batch import follow_ups
from ledger.batch.advice.actions import sentences
from ledger.batch.holds import preview_of
from ledger.batch.outcome.readings import get_batch
from ledger.batch.recovery import restarts_of
from ledger.batch.step_runs import Attempt
from ledger.core.connect_server import briefly
from ledger.core.logs import about, about_failure, configure
from ledger.databases.driver_errors import persist
from ledger.errors import EXIT_PERMANENT, ConfigurationError, UndecidedError
from ledger.execution import StepResult, follow, run_step, run_steps, settle_and_follow
from ledger.pipeline.load import load_pipeline
from ledger.pipeline.pipeline import Pipeline
from ledger.settings import CONN_ID, Settings, log_format, verbose
from ledger.spark.failures import noted, translated
from ledger.spark.job import Job
from ledger.spark.session import build_session
from ledger.storage.folders import require_storage
from ledger.store.upgrade import connect

_log = logging.getLogger("ackledger")


def main() -> int:
    """Run what the command line asks for, and return the exit code: 0 if it is done, or if its
    batch was settled before; ``EXIT_PERMANENT`` for an error that a retry would repeat; 1 for any
    other error, or an interrupt. Errors are logged.
    """
    configure(log_format())
    options = _arguments()
    step = {} if options.step is None else {"step": options.step}
    try:
        with about(batch_id=options.batch, **step):
            return run_task(options)
    except KeyboardInterrupt as exc:  # Spark got the signal, too
        with about_failure(exc):
            _log.error("%s of batch %s was stopped", options.step or "run", options.batch)
        return 1
    except Exception as exc:  # any that the user's code raises: one line, the last of the log
        with about_failure(exc):
            if verbose():
                _log.error("the traceback:", exc_info=exc)
            _log.error("%s of batch %s: %s", options.step or "run", options.batch, noted(exc))
        return EXIT_PERMANENT if translated(exc).permanent else 1


def run_task(options: argparse.Namespace) -> int:
    """Run the whole batch, a step, or a follow-up of the settlement, as the options say. Return 0;
    errors are raised.
    """
    pipeline = load_pipeline(options.pipeline)
    with about(pipeline=pipeline.name):
        return _run_of(pipeline, options)


def _run_of(pipeline: Pipeline, options: argparse.Namespace) -> int:
    check_connection(options.conn_id)
    settings = Settings()
    database = persist(lambda: connect(settings))
    get_batch(database, options.batch, pipeline.name)  # each ledger counts batches from 1
    require_storage(settings)
    if options.remote is not None:  # no JVM of ours ends with us: what runs there is interrupted
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    name = f"ackledger {pipeline.name}.{options.step or 'run'}"
    session = build_session(name, options.remote, silent=bool(pipeline.redact))
    leave = partial(_leave, session if options.remote else None)
    job = Job(session, database, settings, pipeline, on_fenced=leave)
    attempt = Attempt(options.attempt, options.try_number, options.attempt_number)
    try:
        _run_part(job, options, attempt)
    finally:
        if options.remote:
            briefly(session.stop)
        else:
            with suppress(Exception):  # the error that ended the step is reported
                session.stop()
    return 0


def check_connection(conn_id: str | None) -> None:
    """Raise ConfigurationError if the driver was started for the ledger of a connection, and its
    environment is not of that connection. ``conn_id``: None, for the ledger of the environment.
    """
    environment = os.environ.get(CONN_ID)
    if conn_id is not None and conn_id != environment:
        of = "no connection" if environment is None else repr(environment)
        raise ConfigurationError(
            f"this driver was started for the ledger of connection {conn_id!r}, its environment is"
            f" of {of}: set ACKLEDGER_DATABASE_URL, ACKLEDGER_STORAGE and {CONN_ID} where drivers"
            " run"
        )


def _run_part(job: Job, options: argparse.Namespace, attempt: Attempt) -> None:
    """Run the whole batch, a step, or a follow-up of the settlement."""
    if options.step is None:
        _run_whole(job, options.batch, attempt)
        return
    following = follow_ups.submitted().get(options.step)
    if following is not None:
        done = follow(job, following, options.batch, attempt)
        _log.info("batch %s: %s %s", options.batch, options.step, done)
        return
    result = run_step(job, options.batch, options.step, attempt)
    if result.record is None:
        _log.info("batch %s is settled: %s changes nothing", options.batch, options.step)
        return
    with about(step_run_id=result.step_run_id):
        _log.info("%s of batch %s: %s", options.step, options.batch, result.record)


def _run_whole(job: Job, batch_id: int, attempt: Attempt) -> None:
    """Run the pending steps of a batch, settle it, and run its follow-ups. Raises UndecidedError if
    the batch is not decided, for example because it is on hold.
    """

    def on_step(name: str, result: StepResult | None) -> None:
        if result is None:
            with about(step=name):
                _log.info("%s of batch %s begins", name, batch_id)
            return
        if result.record is None:  # the settlement was first, reported below
            return
        rows, seconds = result.record.output_rows, result.seconds
        with about(step=name, step_run_id=result.step_run_id):
            _log.info("%s of batch %s: %s rows, %.1f s", name, batch_id, f"{rows:,}", seconds)

    try:
        run_steps(job, batch_id, on_step, attempt)
    except Exception as exc:
        if ways := restarts_of(job.database, batch_id):
            exc.add_note(sentences(ways))
        raise
    done = settle_and_follow(job, batch_id, attempt=attempt)
    if not done.status.decided:
        for line in preview_of(job.database, batch_id):
            _log.error("%s", line)
        raise UndecidedError(f"batch {batch_id} is {done.status.words}: {done.reason}")
    _log.info("%s", done)


def _leave(remote: SparkSession | None) -> None:
    """End this process at once, without cleanup, because a newer attempt owns the step. Interrupt
    what it runs on a Connect server.
    """
    _log.error("a newer attempt owns this step: the driver ends")
    if remote is not None:
        briefly(remote.interruptAll)
    logging.shutdown()
    os._exit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True, metavar="MODULE:NAME")
    parser.add_argument("--batch", required=True, type=int)
    parser.add_argument("--step", help="or a follow-up; all of the batch without")
    parser.add_argument("--attempt", required=True, type=UUID, help="id of the task instance")
    parser.add_argument("--try-number", default=1, type=int)
    parser.add_argument(
        "--attempt-number", type=int, help="drawn from the ledger when the task began"
    )
    parser.add_argument("--conn-id", help="Airflow's connection of the ledger")
    parser.add_argument("--remote", metavar="sc://HOST:PORT", help="a Spark Connect server")
    plain = [argument for argument in sys.argv[1:] if "{{" in argument]
    if plain:
        parser.error(
            f"expected arguments that Airflow has rendered, found {plain[0]}: the operator that"
            " runs this must have application_args among its template_fields"
        )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
