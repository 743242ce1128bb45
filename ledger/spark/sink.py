"""Run a sink: write the user's columns beside the table, ack what it holds, show it by one rename."""

from dataclasses import replace

import fsspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sqlalchemy import Connection

from ledger.errors import StageError
from ledger.queries import dedup as queries
from ledger.spark import fold
from ledger.spark.dedup import Deduplicator
from ledger.spark.inputs import input_rows, root_rows, user_columns
from ledger.spark.job import POSITION, ROOT, ROOTS, Job, Witness, file_rows, require_equal
from ledger.spark.manifest import Manifest, take_manifest
from ledger.spark.units import Replacement
from ledger.stage_runs import OpenedRun, Record, commit, retire
from ledger.steps import SinkStep
from ledger.storage import require_writable

WRITTEN = {"compression": "zstd", "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


def run_sink(job: Job, run: OpenedRun, step: SinkStep) -> Record:
    """Run one sink of one batch, commit it and show its folder; what it recorded."""
    rows = input_rows(job, run)
    folders = _Folders(job.settings.data_path(step.sink.path), run)
    dedup = Deduplicator(job, run, step)
    kept = dedup.keep(rows)
    replacement = Replacement(job, run, step)
    wrote, carried = Witness(), Witness()
    delivered = wrote.watch(kept.select(*user_columns(kept)))
    others = replacement.carried()
    if others is not None:
        delivered = delivered.unionByName(carried.watch(others), allowMissingColumns=True)
    _write(delivered, step, folders.staging)
    manifest = take_manifest(folders.staging)
    own = manifest.rows - (0 if others is None else carried.rows)
    require_equal(f"rows of {step.name} in {folders.staging}", wrote.rows, own)
    record = _post(job, run, step, rows, own, dedup.dropped(rows))

    if folders.replaces():
        # From here until the commit no run of the sink counts: were the driver killed between the
        # renames, the batch could not settle without this sink.
        retire(job.database, run)

    def deliver(connection: Connection) -> None:
        dedup.save(connection)
        for batch_id in queries.void_deliveries(connection, step.name, run.batch):
            folders.remove(batch_id)
        folders.show()
        given_way = [folders.of(batch_id) for batch_id in replacement.batches]
        queries.note_replaced(connection, run.batch.batch_id, step.name, given_way)

    commit(
        job.database,
        run,
        record,
        files=file_rows(folders.shown(manifest)),
        before_commit=deliver,
    )
    folders.clean()
    dedup.release()
    return record


def _write(rows: DataFrame, step: SinkStep, staging: str) -> None:
    missing = sorted(set(step.sink.partition_by) - set(rows.columns))
    if missing:
        raise StageError(
            f"sink {step.name!r} is partitioned by {missing[0]!r}, which its input lacks; it has {', '.join(rows.columns)}"
        )
    require_writable(staging, f"the path of sink {step.name!r}, or ACKLEDGER_DATA,")
    writer = rows.write.mode("append").options(**WRITTEN)
    if step.sink.partition_by:
        writer = writer.partitionBy(*step.sink.partition_by)
    writer.parquet(staging)


def _post(
    job: Job, run: OpenedRun, step: SinkStep, rows: DataFrame, held: int, dropped: int
) -> Record:
    """Ack what the sink holds: every row read is in its files, or was dropped as delivered before."""
    record = Record(
        input_rows=run.input_run.output_rows or 0,
        output_rows=held,
        duplicate_rows=dropped,
    )
    if run.batch.ackers == 0 or not job.pipeline.tracks(step.reads):
        return record
    read = Witness()
    anchors = ROOTS if ROOTS in rows.columns else ROOT
    tracked = root_rows(read.watch(rows.select(anchors, POSITION)))
    if job.pipeline.graph.may_be_untracked(step.name):
        tracked = tracked.where(F.col(ROOT).isNotNull())
    inputs = {step.reads: run.input_run.stage_run_id}
    one_row = anchors == ROOT and run.input_run.one_row_a_root
    posted = job.post(run, fold.fold_read(tracked, inputs, step.name, one_row=one_row))
    require_equal(f"rows read by {step.name} less its duplicates", read.rows - dropped, held)
    return replace(
        record,
        delta_rows=posted.rows,
        delta_xor=posted.delta_xor,
        emitted_edges=posted.emitted_edges,
        emitted_roots=posted.emitted_roots,
        acked_edges=posted.acked_edges,
    )


class _Folders:
    """Where a sink's run stages its files and where they are shown: ``<path>/batch=<id>``."""

    def __init__(self, path: str, run: OpenedRun):
        self._path = path
        self.staging = f"{path}/_staging/{run.run_id}"
        self._replaced = f"{path}/_staging/{run.run_id}_replaced"
        self._final = self.of(run.batch.batch_id)
        self._fs = _filesystem(path)

    def shown(self, manifest: Manifest) -> Manifest:
        """The manifest with the paths that the files will have once shown."""
        return Manifest(
            tuple(
                replace(file, path=file.path.replace(self.staging, self._final, 1))
                for file in manifest.files
            )
        )

    def show(self) -> None:
        """Show the staged folder by one rename; an earlier run's folder of this batch gives way."""
        if not self._fs.exists(self.staging) and self._fs.exists(self._final):
            return  # renamed before the connection was lost; the batch's lock kept others away
        if self.replaces():
            self._fs.mv(self._final, self._replaced, recursive=True)
        try:
            self._fs.mv(self.staging, self._final, recursive=True)
        except OSError:
            if self._fs.exists(self._replaced) and not self.replaces():
                self._fs.mv(self._replaced, self._final, recursive=True)
            raise

    def replaces(self) -> bool:
        """Whether an earlier run of the batch shows its folder."""
        return bool(self._fs.exists(self._final))

    def of(self, batch_id: int) -> str:
        """Where a batch's files are shown."""
        return f"{self._path}/batch={batch_id}"

    def remove(self, batch_id: int) -> None:
        """Remove the folder of another batch."""
        folder = self.of(batch_id)
        if self._fs.exists(folder):
            self._fs.rm(folder, recursive=True)

    def clean(self) -> None:
        """Remove what this run's folder replaced."""
        if self._fs.exists(self._replaced):
            self._fs.rm(self._replaced, recursive=True)


def _filesystem(path: str) -> fsspec.AbstractFileSystem:
    return fsspec.core.url_to_fs(path)[0]
