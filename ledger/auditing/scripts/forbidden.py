"""Calls that end an audited script, because they write or run where the audit does not see it."""

import importlib
import inspect
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.catalog import Catalog
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from ledger.auditing.losses import OutputResult
from ledger.auditing.scripts.files import ScriptFiles
from ledger.auditing.scripts.job import JobAudit
from ledger.auditing.scripts.patches import Patches, own_calls
from ledger.auditing.scripts.phantoms import left_out
from ledger.auditing.scripts.stops import ScriptStop
from ledger.auditing.scripts.written import full_path
from ledger.lineage.sites import UNKNOWN, user_line

_SAVING = (
    *("saveAsHadoopDataset", "saveAsHadoopFile", "saveAsNewAPIHadoopDataset"),
    *("saveAsNewAPIHadoopFile", "saveAsPickleFile", "saveAsSequenceFile", "saveAsTextFile"),
)
_PANDAS = (
    *("csv", "excel", "feather", "gbq", "hdf", "html", "json", "latex", "markdown"),
    *("orc", "parquet", "pickle", "sql", "stata", "string", "xml"),
)
CONNECT = (
    "uses Spark Connect, whose plans cannot be followed: expected a classic session. Unset "
    "SPARK_REMOTE and remote(), and run it with a master"
)


def forbid(patches: Patches, job: JobAudit, files: ScriptFiles) -> None:
    """Intercept calls that cannot be audited. They end the script, or are left out as far as it can
    go on without them.
    """

    def stopped(what: str) -> Callable[..., Any]:
        def stop(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            raise ScriptStop(what.format(method.__name__))

        return stop

    rows = "{}() may write anywhere: the audit does not run it. Write with DataFrame.write"
    for name in ("foreach", "foreachPartition"):
        patches.replace(ClassicDataFrame, name, stopped(rows))
    for name in ("foreach", "foreachPartition", *_SAVING):
        patches.replace(RDD, name, stopped(rows))
    second = "{}() writes by DataFrameWriterV2: expected DataFrame.write, which is audited"
    for name in ("mergeInto", "writeTo"):
        patches.replace(ClassicDataFrame, name, stopped(second))
    tables = "{}() writes to the catalog: expected DataFrame.write or SQL, which are audited"
    for name in ("createExternalTable", "createTable"):
        patches.replace(Catalog, name, stopped(tables))
    streams = "reads or writes a stream: expected a batch. Read its source with spark.read"

    def stream(owner: Any) -> Any:
        raise ScriptStop(streams)

    patches.replace_property(SparkSession, "readStream", stream)
    patches.replace_property(ClassicDataFrame, "writeStream", stream)
    _leave_out_stops(patches)
    _keep_checkpoints_in_the_plan(patches)
    _leave_out_pandas(patches, job, files)
    _redirect_pandas(patches, job)
    _leave_out_models(patches, job)
    _forbid_connect(patches)


def _leave_out_stops(patches: Patches) -> None:
    """Let calls that stop the session do nothing, because the report needs it."""

    def stop(method: Callable[..., Any], owner: Any) -> None:
        """Stop nothing."""

    for owner in (SparkSession, SparkContext):
        patches.replace(owner, "stop", stop)


def _keep_checkpoints_in_the_plan(patches: Patches) -> None:
    """Let checkpoints return their frame, because they would cut the plan that is followed."""

    def same(method: Callable[..., Any], frame: DataFrame, *args: Any, **kwargs: Any) -> DataFrame:
        return frame

    for name in ("checkpoint", "localCheckpoint"):
        patches.replace(ClassicDataFrame, name, same)


def _leave_out_pandas(patches: Patches, job: JobAudit, files: ScriptFiles) -> None:
    """Let pandas write to no path, and note each such write as an output that is not followed.
    Texts, and files that the script has opened, are written.
    """
    import pandas

    def left_out(method: Callable[..., Any], frame: Any, *args: Any, **kwargs: Any) -> Any:
        # Where it writes is its first parameter, which each method has its own name for.
        _, first, *_ = inspect.signature(method).parameters
        target = args[0] if args else kwargs.get(first)
        if target is not None and (hasattr(target, "write") or _is_store(target)):
            if not _is_store(target):
                files.note_python_file(getattr(target, "name", target))
            target = None
        if target is None:
            return method(frame, *args, **kwargs)  # a text, or what the script has opened itself
        job.note_pandas(str(target), method.__name__)
        return None

    for name in _PANDAS:
        method = f"to_{name}"
        classes = (*pandas.DataFrame.__mro__, *pandas.Series.__mro__)
        for owner in {each for each in classes if method in each.__dict__}:
            patches.replace(owner, method, left_out)


def _is_store(target: object) -> bool:
    import pandas

    return isinstance(target, (pandas.ExcelWriter, pandas.HDFStore))


def _redirect_pandas(patches: Patches, job: JobAudit) -> None:
    """Have files of pandas that take several frames written to a folder of the copies."""
    import pandas

    def opened(
        method: Callable[..., Any], store: Any, path: Any, *args: Any, **kwargs: Any
    ) -> None:
        bound = inspect.signature(method).bind(store, path, *args, **kwargs)
        bound.apply_defaults()
        mode = bound.arguments.get("mode")
        if isinstance(path, (str, os.PathLike)) and mode != "r":
            kind = "ExcelWriter" if isinstance(store, pandas.ExcelWriter) else "HDFStore"
            name = os.fspath(path)
            job.note_pandas(name, kind)
            path = Path(tempfile.mkdtemp(prefix="pandas-", dir=job.folder)) / os.path.basename(name)
            if mode != "w" and os.path.exists(name):
                shutil.copyfile(name, path)
            path = str(path)
        method(store, path, *args, **kwargs)

    for owner in (pandas.ExcelWriter, pandas.HDFStore):
        patches.replace(owner, "__init__", opened)


def _leave_out_models(patches: Patches, job: JobAudit) -> None:
    """Let no model be saved, and note each as an output that is not followed. Rows that a model was
    fitted to may have arrived in it. Ends the script if it loads such a model.
    """
    from pyspark.ml.base import Estimator
    from pyspark.ml.pipeline import PipelineModelReader, PipelineReader
    from pyspark.ml.util import JavaMLReader, JavaMLWriter, MLWriter

    def fit(method: Callable[..., Any], owner: Any, *args: Any, **kwargs: Any) -> Any:
        frame = args[0] if args else kwargs["dataset"]
        job.note_driver_rows(frame, "fit()")
        with own_calls(False):  # an estimator of the script's own may do anything
            return method(owner, *args, **kwargs)

    def saved(method: Callable[..., Any], writer: Any, path: str) -> None:
        why = "a model is not saved: the rows that it was fitted to are not followed"
        job.others.append(OutputResult(path, user_line() or UNKNOWN, why, is_final=True))
        job.phantoms.unmade[full_path(path)] = left_out("save", path)

    def load(method: Callable[..., Any], reader: Any, path: str) -> Any:
        if path in {output.name for output in job.others}:
            raise ScriptStop(f"loads {path}, a model that the audit has not saved: pass it on")
        return method(reader, path)

    patches.replace(Estimator, "fit", fit)
    patches.replace(JavaMLWriter, "save", saved)
    patches.replace(MLWriter, "save", saved)
    patches.replace(JavaMLReader, "load", load)
    patches.replace(PipelineReader, "load", load)
    patches.replace(PipelineModelReader, "load", load)


def _forbid_connect(patches: Patches) -> None:
    def remote(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        raise ScriptStop(CONNECT)

    patches.replace(SparkSession.Builder, "remote", remote)
    try:
        connect = importlib.import_module("pyspark.sql.connect.session")
    except ImportError:  # its packages are not installed, so no script uses it
        return
    patches.replace(connect.SparkSession, "__init__", remote)
