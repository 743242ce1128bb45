"""Files that a fold leaves for its run.

Executors have no connection to the ledger: their tasks write files that the driver then posts, and
report which files count. Tasks in the driver keep in memory what is to be posted. Where deltas are
posted by span, each fold also writes them by root.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Self
from uuid import uuid4

import pyarrow as pa

from ledger.deltas.kernel import Deltas, DeltaTotals, Fails, Messages, compacted
from ledger.deltas.portions import Folded
from ledger.deltas.root_files import RootFile, RootWriter, read_roots
from ledger.deltas.rows import NONE
from ledger.deltas.spans import Spans
from ledger.deltas.stored import Checksum, texts_of
from ledger.deltas.table_writer import TableWriter
from ledger.storage import stores
from ledger.storage.parquet import iter_batches, stored_file

FAIL_ROWS = 1_000  # with their texts
MESSAGE_ROWS = 1 << 16

_FAILS = pa.schema(
    [
        ("root", pa.int64()),
        ("reason", pa.string()),
        ("shared", pa.bool_()),
        ("detail", pa.large_string()),
    ]
)
_MESSAGES = pa.schema([("root", pa.int64()), ("message", pa.int64())])


@dataclass(frozen=True)
class FoldFiles:
    """Files that one task wrote; None where the task had no such rows.

    ``rows``: the deltas to post, by root or by span.
    ``roots``: the same deltas by root, if ``rows`` has them by span.
    ``fails``, ``messages``: the failed roots and replayed messages to post with the deltas.
    """

    rows: RootFile | None = None
    roots: RootFile | None = None
    fails: str | None = None
    messages: str | None = None

    @property
    def posted(self) -> list[str]:
        """Paths of the files that nothing needs once they are posted: all but ``roots``."""
        paths = [self.rows.path if self.rows else None, self.fails, self.messages]
        return [path for path in paths if path is not None]

    def read_rows(self) -> Iterator[Deltas]:
        """Yield the deltas to post, part by part."""
        if self.rows is not None:
            yield from read_roots([self.rows])

    def read_fails(self) -> Iterator[Fails]:
        """Yield the roots that fail, a few at a time."""
        for batch in _batches(self.fails, FAIL_ROWS, _FAILS):
            texts = texts_of(batch["reason"])
            shared = batch["shared"].to_numpy(zero_copy_only=False)
            details = batch["detail"].to_pylist()
            yield Fails(batch["root"].to_numpy(), texts.codes, shared, texts.words, details)

    def read_messages(self) -> Iterator[Messages]:
        """Yield the replayed message of each root, part by part."""
        for batch in _batches(self.messages, MESSAGE_ROWS, _MESSAGES):
            yield Messages(batch["root"].to_numpy(), batch["message"].to_numpy())


@dataclass(frozen=True, kw_only=True)
class FoldSums:
    """Sums over everything that a task, or a run, folded.

    ``posted``: the totals of the deltas to post.
    ``wrote``: the checksum of the rows that the run wrote.
    ``with_rows``, ``drops``: the sums of the same fields of ``Deltas``.
    """

    posted: DeltaTotals = field(default_factory=DeltaTotals)
    wrote: Checksum = field(default_factory=Checksum)
    with_rows: int = 0
    drops: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of_part(cls, part: Folded) -> "FoldSums":
        """Return the sums of one folded part."""
        deltas = part.deltas
        return FoldSums(
            posted=DeltaTotals.of(deltas),
            wrote=part.wrote,
            with_rows=deltas.with_rows,
            drops=dict(deltas.drops),
        )

    def plus(self, other: "FoldSums") -> Self:
        """Return a copy of this object with the sums of both. Its other fields are unchanged."""
        return replace(
            self,
            posted=self.posted + other.posted,
            wrote=self.wrote + other.wrote,
            with_rows=self.with_rows + other.with_rows,
            drops=dict(Counter(self.drops) + Counter(other.drops)),
        )


@dataclass(frozen=True)
class TaskReport(FoldSums):
    """A task's report: the sums of what it folded, and the deltas to post.

    ``files``: the files with the deltas, fails and messages to post.
    ``deltas``: the same in memory, if the task ran in the driver.
    """

    files: FoldFiles = field(default_factory=FoldFiles)
    deltas: Sequence[Deltas] = ()


@dataclass(frozen=True)
class FoldWriter:
    """Writes the deltas that tasks fold to new files below ``folder``. A retried task never reuses
    a file name.

    ``most``: the approximate number of deltas that a task merges by root at a time.
    ``in_memory``: keep the deltas to post in memory, and write only the deltas by root.
    """

    folder: str
    spans: Spans
    most: int
    in_memory: bool = False

    def write(self, parts: Iterable[Folded]) -> TaskReport:
        """Write the folded parts, and return the task's report. If it raises, it leaves no file
        behind.
        """
        report = TaskReport()
        with ExitStack() as stack:
            roots = None
            if not self.spans.by_root:
                roots = stack.enter_context(RootWriter(new_path(self.folder, "roots")))

            def spanned() -> Iterator[Deltas]:
                nonlocal report
                for part in parts:
                    report = report.plus(FoldSums.of_part(part))
                    if roots is not None:
                        roots.add(part.deltas)
                    yield self.spans.to_spans(part.deltas) if roots is not None else part.deltas

            files, deltas = FoldFiles(), list[Deltas]()
            if self.in_memory:
                deltas = list(compacted(spanned(), self.most))
            else:
                files = self._written(spanned(), stack)
            of_roots = None if roots is None else roots.close()
        return replace(report, files=replace(files, roots=of_roots), deltas=deltas)

    def _written(self, deltas: Iterable[Deltas], stack: ExitStack) -> FoldFiles:
        """Write deltas, fails and messages to files. ``stack`` removes them if it exits with an
        error.
        """
        rows = stack.enter_context(RootWriter(new_path(self.folder, "rows")))
        fails = stack.enter_context(TableWriter(new_path(self.folder, "fails"), _FAILS))
        messages = stack.enter_context(TableWriter(new_path(self.folder, "messages"), _MESSAGES))

        def alone() -> Iterator[Deltas]:
            for part in deltas:
                for some in part.fails:
                    fails.write(_fail_columns(some))
                for pairs in part.messages:
                    messages.write([pairs.root, pairs.message])
                yield replace(part, fails=(), messages=(), drops={})

        for part in compacted(alone(), self.most):
            rows.add(part)
        return FoldFiles(rows.close(), None, fails.finish(), messages.finish())


def new_path(folder: str, kind: str) -> str:
    """Return a new file name in ``folder``. Names are unique, also for a retry of the same task."""
    return f"{folder}/{kind}-{uuid4().hex}.parquet"


def remove_posted(files: Iterable[FoldFiles]) -> None:
    """Delete the files of posted deltas. Reasons and raw texts of records are then only in the
    ledger.
    """
    for some in files:
        for path in some.posted:
            stores.remove_file(path)


def _fail_columns(fails: Fails) -> list[Any]:
    words = pa.array(fails.words, pa.string())
    reasons = words.take(pa.array(fails.reason, mask=fails.reason == NONE))
    details = fails.details or [None] * len(fails.root)
    return [fails.root, reasons, fails.shared, pa.array(details, pa.large_string())]


def _batches(path: str | None, rows: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if path is not None:
        with stored_file(path) as stored:
            yield from iter_batches(stored, rows, schema.names)
