"""Calls that end an audited script, because they write or run where the audit does not see it."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.catalog import Catalog
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from ledger.auditing.scripts.job import JobAudit
from ledger.auditing.scripts.patches import Patches
from ledger.auditing.scripts.stops import ScriptStop

_SAVING = (
    *("saveAsHadoopDataset", "saveAsHadoopFile", "saveAsNewAPIHadoopDataset"),
    *("saveAsNewAPIHadoopFile", "saveAsPickleFile", "saveAsSequenceFile", "saveAsTextFile"),
)
_PANDAS = (
    *("csv", "excel", "feather", "hdf", "html", "json", "latex", "markdown"),
    *("orc", "parquet", "pickle", "sql", "stata", "string", "xml"),
)
CONNECT = (
    "uses Spark Connect, whose plans cannot be followed: expected a classic session. Unset "
    "SPARK_REMOTE and remote(), and run it with a master"
)


def forbid(patches: Patches, job: JobAudit) -> None:
    """Have a script ended where it does what cannot be audited."""

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
    _leave_out_pandas(patches, job)
    _forbid_connect(patches)


def _leave_out_stops(patches: Patches) -> None:
    """The session is needed for the report, so a script cannot stop it."""

    def stop(method: Callable[..., Any], owner: Any) -> None:
        """Stop nothing."""

    for owner in (SparkSession, SparkContext):
        patches.replace(owner, "stop", stop)


def _keep_checkpoints_in_the_plan(patches: Patches) -> None:
    """A checkpoint cuts the plan that is followed, so it does nothing."""

    def same(method: Callable[..., Any], frame: DataFrame, *args: Any, **kwargs: Any) -> DataFrame:
        return frame

    for name in ("checkpoint", "localCheckpoint"):
        patches.replace(ClassicDataFrame, name, same)


def _leave_out_pandas(patches: Patches, job: JobAudit) -> None:
    """pandas writes nothing; each write is noted as an output that is not followed."""
    import pandas

    def left_out(method: Callable[..., Any], frame: Any, *args: Any, **kwargs: Any) -> Any:
        # Where it writes is its first parameter, which each method has its own name for.
        _, first, *_ = inspect.signature(method).parameters
        target = args[0] if args else kwargs.get(first)
        if target is None or hasattr(target, "write"):
            return method(frame, *args, **kwargs)  # a text, or what the script has opened itself
        job.note_pandas(str(target), method.__name__)
        return None

    for name in _PANDAS:
        method = f"to_{name}"
        classes = (*pandas.DataFrame.__mro__, *pandas.Series.__mro__)
        for owner in {each for each in classes if method in each.__dict__}:
            patches.replace(owner, method, left_out)


def _forbid_connect(patches: Patches) -> None:
    def remote(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        raise ScriptStop(CONNECT)

    patches.replace(SparkSession.Builder, "remote", remote)
    try:
        connect = importlib.import_module("pyspark.sql.connect.session")
    except ImportError:  # its packages are not installed, so no script uses it
        return
    patches.replace(connect.SparkSession, "__init__", remote)
