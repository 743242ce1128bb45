"""Checks of the requirements of a run, before a batch is opened: they claim nothing, and write to
no source or sink.

They make the folder of the storage, and start and migrate the embedded server, if need be.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ledger.core.connect_server import require_server
from ledger.core.requirements import require_java
from ledger.core.run_request import Interval, RunKey
from ledger.core.states import BatchStatus, Guarantee
from ledger.errors import ConfigurationError, LedgerError, UnavailableError, together
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import SinkStep, SourceStep
from ledger.settings import Settings
from ledger.sinks.base import planned
from ledger.sources.references import Reference
from ledger.storage.folders import require_storage
from ledger.storage.stores import LASTING
from ledger.store.connection import Database
from ledger.store.queries import batches
from ledger.store.queries.batches import Batch
from ledger.store.upgrade import connect
from ledger.types import ddl

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    ``message``: what was found, or what is wrong and what to do.
    ``hint``: whether the subject was not checked, or may be wrong for some batches; the message
    says why.
    """

    subject: str
    message: str
    error: LedgerError | None = None
    hint: bool = False

    @property
    def ok(self) -> bool:
        """Whether this finding does not keep a run from starting."""
        return self.error is None

    def as_row(self) -> dict[str, Any]:
        """Return the finding as a row to print. ``ok`` is None for a hint."""
        ok = None if self.hint else self.ok
        return {"check": self.subject, "ok": ok, "message": self.message}


def examine(
    settings: Settings,
    pipeline: Pipeline,
    interval: Interval | None,
    remote: str | None = None,
    *,
    java: bool = True,
) -> list[Finding]:
    """Check everything that a run of ``pipeline`` needs.

    ``interval``: None: only those files are checked whose path needs no interval.
    ``remote``: the Spark Connect server on which the steps run; without one, ``java`` is whether
    drivers start with the Java of this machine.
    """
    return [
        finding("database", partial(at_revision, settings)),
        *examine_environment(settings, pipeline, interval, remote, java=java),
        *(
            finding(
                f"source {step.name}",
                partial(look_at_source, settings, pipeline, step, interval),
            )
            for step in pipeline.sources()
        ),
    ]


def examine_environment(
    settings: Settings,
    pipeline: Pipeline,
    interval: Interval | None,
    remote: str | None = None,
    *,
    java: bool = True,
) -> list[Finding]:
    """Check what runs and replays need besides the database: Java, or a server that has it,
    storage, references and sinks.
    """
    return [
        *spark(remote, java),
        finding("storage", lambda: require_storage(settings)),
        *(
            finding(f"reference {name}", partial(reference.check, settings, name, interval))
            for name, reference in references_of(pipeline).items()
        ),
        *(
            finding(f"sink {step.name}", partial(look_at_sink, settings, pipeline, step))
            for step in pipeline.sinks()
        ),
    ]


def spark(remote: str | None, java: bool = True) -> list[Finding]:
    """Check the server that steps run on, or the Java of this machine."""
    if remote is not None:
        return [finding("spark", partial(require_server, remote))]
    return [finding("java", require_java)] if java else []


def before_run(
    database: Database,
    settings: Settings,
    pipeline: Pipeline,
    key: RunKey,
    interval: Interval,
    *,
    remote: str | None = None,
    java: bool = True,
) -> None:
    """Check what a run needs, and raise an error unless it is all right. A run whose batch is
    already open, and has claimed what it reads, is not checked.
    """
    if not _is_open(_batch_of_run(database, pipeline, key)):
        require(examine(settings, pipeline, interval, remote, java=java))


def before_replay(
    database: Database,
    settings: Settings,
    pipeline: Pipeline,
    keys: Iterable[RunKey],
    remote: str | None = None,
    *,
    java: bool = True,
) -> None:
    """Check what these replays need, and raise an error unless it is all right. Nothing is checked
    if all of them are already open or decided.
    """
    if not all(_is_open(_batch_of_run(database, pipeline, key)) for key in keys):
        require(examine_environment(settings, pipeline, None, remote, java=java))


def _batch_of_run(database: Database, pipeline: Pipeline, key: RunKey) -> Batch | None:
    return database.transact(lambda c: batches.find_run(c, pipeline.name, key.dag_id, key.run_id))


def _is_open(batch: Batch | None) -> bool:
    """Return whether a run has its batch, so that it claims nothing more."""
    return batch is not None and batch.status is not BatchStatus.ABANDONED


def require(findings: Sequence[Finding]) -> None:
    """Raise one error with all findings that are not ok. Its class is that of the first."""
    wrong = [failure for failure in findings if failure.error is not None]
    if not wrong:
        return
    error = together([failure.error for failure in wrong if failure.error], "things")
    if len(wrong) > 1:
        head = f"{len(wrong)} things are wrong:"
        error.lines = (head, *(f"{failure.subject}: {failure.message}" for failure in wrong))
    raise error


def finding(subject: str, look: Callable[[], str]) -> Finding:
    """Call ``look``. Return a finding on ``subject`` with the text that ``look`` returns or the
    error that it raises.
    """
    try:
        return Finding(subject, look())
    except LedgerError as exc:
        return Finding(subject, str(exc), exc)
    except Exception as exc:  # of a driver or file system: a run would meet it, too, if it lasts
        kind = ConfigurationError if isinstance(exc, LASTING) else UnavailableError
        error = kind(f"{subject}: {type(exc).__name__}: {exc}")
        return Finding(subject, str(error), error)


def at_revision(settings: Settings) -> str:
    """Return the address of the ledger and the revision of its schema. Raises the errors of
    ``connect``.
    """
    database = connect(settings)
    try:
        return f"{database.shown} at revision {database.revision()}"
    finally:
        database.dispose()


def references_of(pipeline: Pipeline) -> dict[str, Reference]:
    """Return the references that a step of the pipeline names."""
    references: dict[str, Reference] = {}
    for step in (*pipeline.steps(), *pipeline.followers()):
        references |= pipeline.references(step)
    return references


def look_at_source(
    settings: Settings, pipeline: Pipeline, step: SourceStep, interval: Interval | None
) -> str:
    """Check what a batch would take of a source, and return what was found. Raises the errors that
    a run would raise.
    """
    found = step.source.check(settings, step.name, interval)
    if (pipeline.guarantee or settings.guarantee) is not Guarantee.EXACTLY_ONCE:
        return found  # a sink withholds only what it refuses itself
    note = pipeline.graph.loss_in_a_branch(step.name)
    return f"{found}; {note}" if note else found


def look_at_sink(
    settings: Settings, pipeline: Pipeline, step: SinkStep, schema: "pa.Schema | None" = None
) -> str:
    """Check the place where a sink writes, and return what was found. Raises the errors that a run
    would raise.

    ``schema``: the columns that the sink is given; None: those that are declared, if any are.
    """
    publisher = step.sink.publisher(settings, pipeline.name, step.name)
    declared = pipeline.step(step.reads).columns
    if schema is None and declared is not None:
        schema = ddl.arrow_schema(declared)
    planned(step.sink.place, publisher, schema)
    return f"{step.sink.place} can be written to"
