"""Batches whose ledger has spans of roots: by hand, and of real runs that post a row a root.

The latter is for as long as sources have no ``span``: ``spanning`` reserves whole spans, and turns
what was posted into spans and root files before a batch is settled. Where runs post spans by
themselves it finds nothing to do.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text

from ledger.core.probes import listening
from ledger.deltas.kernel import Deltas
from ledger.deltas.root_files import RootFile, RootWriter, write_listing
from ledger.deltas.spans import RootRange, Spans, span_of
from ledger.store.connection import Database
from ledger.store.queries import batches
from tests.support.posting import Delta, signed

AUTO = "auto"
SPANS = (1, 16, 4096, AUTO)


def deltas_of(rows: Iterable[Delta]) -> Deltas:
    """The same, as the kernel has them."""
    columns = [
        (
            row.root,
            signed(row.acked ^ row.emitted),
            signed(row.acked),
            row.emitted_edges,
            row.acked_edges,
        )
        for row in rows
    ]
    return Deltas(*np.array(columns, np.int64).reshape(-1, 5).T)


def by_span(ranges: Sequence[RootRange], rows: Iterable[Delta]) -> list[Delta]:
    """What a run posts of the deltas of its roots: one for each span."""
    whole = Spans(ranges).united(deltas_of(rows))
    columns = (whole.root, whole.acked, whole.delta ^ whole.acked)
    edges = (whole.acked_edges, whole.emitted_edges)
    return [
        Delta(*values)
        for values in zip(*(column.tolist() for column in (*columns, *edges)), strict=True)
    ]


class RootFolder:
    """The root files of a run, as a fold writes them: a file for each part, at last the listing."""

    def __init__(self, path: str):
        self.path = path
        self.files: list[RootFile] = []
        self.has_ended = False
        Path(path).mkdir(parents=True, exist_ok=True)

    def add(self, deltas: Deltas) -> None:
        """Write a file of deltas by root."""
        with RootWriter(f"{self.path}/part-{len(self.files)}.parquet") as writer:
            writer.add(deltas)
            file = writer.close()
        if file is not None:
            self.files.append(file)

    def end(self) -> None:
        """Say which files count, once."""
        if not self.has_ended:
            write_listing(self.path, self.files)
            self.has_ended = True


@contextmanager
def spanning(
    database: Database, storage: str, span: int | str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """In the block sources reserve whole spans, and what runs posted root by root is turned into
    spans and root files when their batch is about to be settled. ``span``: as the option of a
    source.
    """
    reserve = batches.reserve_roots

    def reserve_spans(connection: Any, count: int, asked: int = 1) -> int:
        return reserve(connection, count, max(asked, _span(span, count)))

    def listen(place: str, of: str) -> None:
        if place == "before settlement":
            with database.plain.begin() as connection:
                _turn(connection, storage, span)

    monkeypatch.setattr(batches, "reserve_roots", reserve_spans)
    with listening(listen):
        yield


def _span(span: int | str, roots: int) -> int:
    return span_of(roots) if span == AUTO else int(span)


def _turn(connection: Any, storage: str, span: int | str) -> None:
    """Of each undecided batch."""
    query = "SELECT batch_id FROM batch WHERE status IN ('open', 'held')"
    for batch_id in connection.execute(text(query)).scalars().all():
        _set_spans(connection, batch_id, span)
        ranges = [
            RootRange(row.first_root, row.roots, row.span)
            for row in connection.execute(
                text("SELECT * FROM batch_source WHERE batch_id = :id AND roots > 0"),
                {"id": batch_id},
            )
        ]
        if not Spans(ranges).by_root:
            for run in _by_root(connection, batch_id):
                _turn_run(connection, run, ranges, storage)


def _set_spans(connection: Any, batch_id: int, span: int | str) -> None:
    rows = connection.execute(
        text("SELECT source, roots FROM batch_source WHERE batch_id = :id AND roots > 0"),
        {"id": batch_id},
    )
    for row in rows.all():
        connection.execute(
            text("UPDATE batch_source SET span = :span WHERE batch_id = :id AND source = :source"),
            {"span": _span(span, row.roots), "id": batch_id, "source": row.source},
        )


def _by_root(connection: Any, batch_id: int) -> Sequence[Any]:
    """The committed runs that posted a row a root."""
    return connection.execute(
        text("""
            SELECT r.step_run_id, r.batch_id, p.name AS pipeline
            FROM step_run r JOIN batch b USING (batch_id) JOIN pipeline p USING (pipeline_id)
            WHERE r.batch_id = :id AND r.state = 'committed' AND r.root_files IS NULL
              AND r.delta_rows IS NOT NULL
        """),
        {"id": batch_id},
    ).all()


def _turn_run(connection: Any, run: Any, ranges: Sequence[RootRange], storage: str) -> None:
    keys: Mapping[str, Any] = {"run": run.step_run_id, "batch": run.batch_id}
    where = "WHERE batch_id = :batch AND step_run_id = :run"
    rows = connection.execute(
        text(f"SELECT root_id, delta, acked, emitted_edges, acked_edges FROM ledger_delta {where}"),
        keys,
    ).all()
    columns = np.array([tuple(row) for row in rows], np.int64).reshape(-1, 5).T
    by_root = Deltas(*columns)
    path = f"{storage}/{run.pipeline}/_roots/batch={run.batch_id}/run={run.step_run_id}"
    folder = RootFolder(path)
    half = len(by_root.root) // 2
    for part in (slice(None, half), slice(half, None)):  # several files, as of several tasks
        folder.add(Deltas(*(column[part] for column in columns)))
    folder.end()
    connection.execute(text(f"DELETE FROM ledger_delta {where}"), keys)
    whole = Spans(ranges).united(by_root)
    for row in zip(
        whole.root.tolist(),
        whole.delta.tolist(),
        whole.acked.tolist(),
        whole.emitted_edges.tolist(),
        whole.acked_edges.tolist(),
        strict=True,
    ):
        connection.execute(
            text("INSERT INTO ledger_delta VALUES (:batch, :run, :root, :delta, :acked, :e, :a)"),
            {**keys, **dict(zip(("root", "delta", "acked", "e", "a"), row, strict=True))},
        )
    xor = int(np.bitwise_xor.reduce(whole.delta)) if len(whole.root) else 0
    connection.execute(
        text(
            "UPDATE step_run SET root_files = :path, delta_rows = :rows, delta_xor = :xor"
            " WHERE step_run_id = :run"
        ),
        {**keys, "path": path, "rows": len(whole.root), "xor": xor},
    )
