"""Calls of Java by which a script itself changes files or writes rows."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import py4j
from py4j.java_gateway import JavaClass, JavaMember, JavaObject, is_instance_of
from py4j.protocol import Py4JError
from pyspark import SparkContext

from ledger.auditing.scripts.earlier import full_name
from ledger.auditing.scripts.files import ScriptFiles, caller
from ledger.auditing.scripts.patches import Patches
from ledger.auditing.scripts.stops import ScriptStop
from ledger.auditing.scripts.written import full_path
from ledger.lineage.sites import LIBRARIES

_FILE_SYSTEM, _CONTEXT = "org.apache.hadoop.fs.FileSystem", "org.apache.hadoop.fs.FileContext"
_FILE_SYSTEMS = (_FILE_SYSTEM, _CONTEXT)
# Methods that do nothing, with what they return.
_LEFT_OUT: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        _FILE_SYSTEMS,
        {"delete": True, "deleteOnExit": True, "mkdir": None, "mkdirs": True}
        | dict.fromkeys(("setOwner", "setPermission", "setReplication", "setTimes")),
    ),
    "org.apache.spark.api.java.JavaSparkContext": {"close": None, "stop": None},
    "org.apache.spark.SparkContext": {"stop": None},
    "org.apache.spark.sql.SparkSession": {"close": None, "stop": None},
}
_DELETING = ("delete", "deleteOnExit")
_READING = frozenset(
    {
        *("exists", "getContentSummary", "getFileStatus", "getLength", "globStatus"),
        *("isDirectory", "isFile", "listFiles", "listLocatedStatus", "listStatus", "open"),
    }
)
_SAVING = frozenset(
    {
        *("foreach", "foreachAsync", "foreachPartition", "foreachPartitionAsync"),
        *("saveAsHadoopDataset", "saveAsHadoopFile", "saveAsNewAPIHadoopDataset"),
        *("saveAsNewAPIHadoopFile", "saveAsObjectFile", "saveAsTextFile"),
    }
)
_CATALOG = frozenset(
    {
        *("alterTable", "createDatabase", "createExternalTable", "createPartitions"),
        *("createTable", "dropDatabase", "dropPartitions", "dropTable", "renamePartitions"),
        *("renameTable", "loadPartition", "loadTable"),
    }
)
# Methods that end the script, by the class that has them.
_STOPPING: dict[str, frozenset[str]] = {
    _FILE_SYSTEM: frozenset(
        {
            *("append", "appendFile", "concat", "copyFromLocalFile", "copyToLocalFile", "create"),
            *("createFile", "createNewFile", "createNonRecursive", "createSymlink", "rename"),
            *("moveFromLocalFile", "moveToLocalFile", "startLocalOutput", "truncate"),
        }
    ),
    _CONTEXT: frozenset({"create", "createSymlink", "rename", "truncate"}),
    "java.io.File": frozenset(
        {"createNewFile", "delete", "deleteOnExit", "mkdir", "mkdirs", "renameTo"}
    ),
    "java.sql.Statement": frozenset(
        {"execute", "executeBatch", "executeLargeUpdate", "executeUpdate"}
    ),
    "io.delta.tables.DeltaTable": frozenset(
        {
            *("clone", "delete", "generate", "restoreToTimestamp", "restoreToVersion", "update"),
            *("updateExpr", "upgradeTableProtocol", "vacuum"),
        }
    ),
    "io.delta.tables.DeltaMergeBuilder": frozenset({"execute"}),
    "io.delta.tables.DeltaOptimizeBuilder": frozenset({"executeCompaction", "executeZOrderBy"}),
    "io.delta.tables.DeltaTableBuilder": frozenset({"execute"}),
    "org.apache.spark.api.java.JavaRDDLike": _SAVING,
    "org.apache.spark.rdd.RDD": _SAVING,
    "org.apache.spark.sql.DataFrameWriter": frozenset(
        {
            *("csv", "insertInto", "jdbc", "json", "orc"),
            *("parquet", "save", "saveAsTable", "text", "xml"),
        }
    ),
    "org.apache.spark.sql.DataFrameWriterV2": frozenset(
        {"append", "create", "createOrReplace", "overwrite", "overwritePartitions", "replace"}
    ),
    "org.apache.spark.sql.Dataset": _SAVING | {"mergeInto", "writeStream", "writeTo"},
    "org.apache.spark.sql.SQLContext": frozenset({"sql"}),
    "org.apache.spark.sql.SparkSession": frozenset({"executeCommand", "sql"}),
    "org.apache.spark.sql.catalog.Catalog": _CATALOG,
    "org.apache.spark.sql.catalyst.catalog.ExternalCatalog": _CATALOG,
    "org.apache.spark.sql.catalyst.catalog.SessionCatalog": _CATALOG,
}
_STATIC: dict[str, frozenset[str]] = {
    _FILE_SYSTEM: frozenset({"create", "mkdirs"}),
    "java.nio.file.Files": frozenset(
        {
            *("copy", "createDirectories", "createDirectory", "createFile", "delete"),
            *("deleteIfExists", "move", "newBufferedWriter", "newOutputStream", "write"),
            "writeString",
        }
    ),
    "org.apache.commons.io.FileUtils": frozenset(
        {
            *("cleanDirectory", "copyDirectory", "copyFile", "deleteDirectory", "deleteQuietly"),
            *("forceDelete", "moveDirectory", "moveFile", "write", "writeStringToFile"),
        }
    ),
    "org.apache.hadoop.fs.FileUtil": frozenset(
        {"copy", "copyMerge", "fullyDelete", "fullyDeleteContents", "replaceFile", "symLink"}
    ),
}
_CONSTRUCTED = frozenset({"java.io.FileOutputStream", "java.io.FileWriter", "java.io.PrintWriter"})
_NAMES = (
    frozenset().union(*_STOPPING.values(), *_STATIC.values())
    | frozenset(name for methods in _LEFT_OUT.values() for name in methods)
    | _READING
)
_OWN = (*LIBRARIES, f"{Path(str(py4j.__file__)).parent}{os.sep}")


def intercept_java(patches: Patches, files: ScriptFiles) -> None:
    """Intercept the Java calls that the script's own code makes. Calls that write rows end the
    script. Calls that change files are left out, and those that look for files see them as the
    script would.
    """

    def called(method: Callable[..., Any], member: JavaMember, *args: Any) -> Any:
        if member.name not in _NAMES or _is_of_spark():
            return method(member, *args)
        if member.container is None:
            owner = member.target_id.removeprefix("z:")
            if member.name in _STATIC.get(owner, ()):
                raise _stop(member.name, owner)
            return method(member, *args)
        paths = [str(arg) for arg in args if isinstance(arg, JavaObject)]
        for owner, left_out in _LEFT_OUT.items():
            if member.name in left_out and _is_a(member.container, owner):
                if owner in _FILE_SYSTEMS and not _leave_out(files, member.name, paths):
                    return False
                return left_out[member.name]
        for owner, names in _STOPPING.items():
            if member.name in names and _is_a(member.container, owner):
                raise _stop(member.name, owner)
        if member.name in _READING and any(_is_a(member.container, e) for e in _FILE_SYSTEMS):
            if member.name == "exists" and len(paths) == 1:
                return _exists(files, method, member, args, full_path(paths[0]))
            for path in paths:
                files.phantoms.require_none(member.name, full_path(path), is_pattern=True)
        return method(member, *args)

    def constructed(method: Callable[..., Any], owner: JavaClass, *args: Any) -> Any:
        if owner._fqn in _CONSTRUCTED and not _is_of_spark():
            raise _stop("a constructor", owner._fqn)
        return method(owner, *args)

    patches.replace(JavaMember, "__call__", called)
    patches.replace(JavaClass, "__call__", constructed)


def _exists(
    files: ScriptFiles, method: Callable[..., Any], member: JavaMember, args: Any, full: str
) -> Any:
    """Return whether a path exists for the script."""
    try:
        seen = files.phantoms.seen(full, full)
    except FileNotFoundError:
        return False
    return True if seen != full else method(member, *args)


def _leave_out(files: ScriptFiles, name: str, paths: list[str]) -> bool:
    """Note a call that is left out. Return False if there is nothing to remove for the script."""
    for path in map(full_name, paths[:1]):
        if name not in _DELETING:
            files.note_left_out(name, path)
            continue
        try:
            if not files.is_removal_left_out(name, path):
                files.leave_out(name, path)
            if "://" in path:  # whether it is there cannot be seen here
                files.phantoms.remove(name, path)
        except FileNotFoundError:
            return False
    return True


def _is_of_spark() -> bool:
    """Return whether a call comes from Spark's or this library's Python."""
    return caller().f_code.co_filename.startswith(_OWN)


def _is_a(instance: JavaObject, owner: str) -> bool:
    gateway = SparkContext._gateway
    try:
        return gateway is not None and bool(is_instance_of(gateway, instance, owner))
    except Py4JError:  # there is no such class
        return False


def _stop(name: str, owner: str) -> ScriptStop:
    return ScriptStop(
        f"calls {name}() of {owner}, which may write or remove anything: the audit does not run "
        "it. Audit what comes before, or write with DataFrame.write"
    )
