"""Options of a reader by which Spark leaves out records of a source."""

from ledger.auditing.sources import relation_of
from ledger.errors import CarryError
from ledger.lineage.catalyst import Catalyst, Node

_TEXTS = ("CSVFileFormat", "JsonFileFormat", "XmlFileFormat")
_SKIPPING = ("ignoreCorruptFiles", "ignoreMissingFiles")


def require_no_drops(catalyst: Catalyst, files: Node, name: str) -> None:
    """Raise CarryError if the reader of files drops malformed records."""
    format_ = str(relation_of(files).fileFormat().getClass().getSimpleName())
    mode = _option(catalyst, files, "mode")
    if format_.rstrip("$") in _TEXTS and mode.upper() == "DROPMALFORMED":
        raise CarryError(
            f"it reads {name} with mode={mode}, by which Spark drops malformed records without "
            "counting them, and other ones for other columns: expected PERMISSIVE. Give the schema "
            "a column _corrupt_record, and filter by that"
        )


def skipped_files(catalyst: Catalyst, files: Node, name: str) -> str:
    """Return a sentence if the reader skips files that it cannot read; empty: it does not."""
    for option in _SKIPPING:
        default = str(catalyst.spark.conf.get(f"spark.sql.files.{option}", "false"))
        if (_option(catalyst, files, option) or default).lower() == "true":
            return f"{name} is read with {option}: records of files that it skips are not counted"
    return ""


def _option(catalyst: Catalyst, files: Node, name: str) -> str:
    """Return the value of an option, whose name is in any case; empty: it has none."""
    pairs = catalyst.items(relation_of(files).options().toSeq())
    values = [str(pair._2()) for pair in pairs if str(pair._1()).lower() == name.lower()]
    return values[-1] if values else ""
