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
    """Files of one task. ``rows``: deltas to post. ``roots``: the same deltas by root, if those to
    post are by span. ``fails``, ``messages``: to post beside the deltas. None: there are none.
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
        """The deltas to post, part by part."""
        if self.rows is not None:
            yield from read_roots([self.rows])

    def read_fails(self) -> Iterator[Fails]:
        """The roots that fail, a few at a time."""
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
    """Sums over the parts of a fold. ``posted``: totals of the deltas to post. The other fields are
    those of ``Folded`` and ``Deltas``, added up.
    """

    posted: DeltaTotals = field(default_factory=DeltaTotals)
    wrote: Checksum = field(default_factory=Checksum)
    with_rows: int = 0
    drops: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of_part(cls, part: Folded) -> "FoldSums":
        """Return the sums of one part."""
        deltas = part.deltas
        return FoldSums(
            posted=DeltaTotals.of(deltas),
            wrote=part.wrote,
            with_rows=deltas.with_rows,
            drops=dict(deltas.drops),
        )

    def plus(self, other: "FoldSums") -> Self:
        """The sums of both, beside whatever else this one has."""
        return replace(
            self,
            posted=self.posted + other.posted,
            wrote=self.wrote + other.wrote,
            with_rows=self.with_rows + other.with_rows,
            drops=dict(Counter(self.drops) + Counter(other.drops)),
        )


@dataclass(frozen=True)
class TaskReport(FoldSums):
    """Report of a task: the sums of what it folded, and where the deltas to post are. ``deltas``:
    those that are in memory, with their fails and messages.
    """

    files: FoldFiles = field(default_factory=FoldFiles)
    deltas: Sequence[Deltas] = ()


@dataclass(frozen=True)
class FoldWriter:
    """Writes what tasks fold to files below ``folder``, each of a name that no other try of the
    task has. ``most``: about how many deltas a task unites by root. ``in_memory``: whether what is
    to be posted stays there, and only what is added to each root is written.
    """

    folder: str
    spans: Spans
    most: int
    in_memory: bool = False

    def write(self, parts: Iterable[Folded]) -> TaskReport:
        """Write the parts that a task folds, and report them. If that raises, no file is left."""
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
        """Write deltas, fails and messages to files, which are removed if ``stack`` is left by an
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
    """A file's name that no other has, also if the same is tried again."""
    return f"{folder}/{kind}-{uuid4().hex}.parquet"


def remove_posted(files: Iterable[FoldFiles]) -> None:
    """Remove what was posted; reasons and texts of records lie in the ledger alone then."""
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
