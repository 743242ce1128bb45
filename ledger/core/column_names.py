"""Names of columns: those of the ledger, and a check of users' names. Spark ignores their case."""

from collections.abc import Iterable

from ledger.errors import LedgerError, StageError

# Authors of stages use the first three. All others begin with the prefix, so that every other name
# is free for columns of sources, stages and tables.
ANCHOR = "_anchor"
FAILED = "_failed"
DROPPED = "_dropped"
PUBLIC = frozenset({ANCHOR, FAILED, DROPPED})
PREFIX = "_ackledger_"
ANCHORS = "_ackledger_anchors"
ROOT = "_ackledger_root"
ROOTS = "_ackledger_roots"
PARENT = "_ackledger_parent"
INPUT = "_ackledger_input"
# Number, XOR and sum of hashes of the records that a row within a plan comes from.
NUMBERS = ("_ackledger_records", "_ackledger_xor", "_ackledger_sum")
ERROR = "_ackledger_error"
RAW = "_ackledger_raw"
NAMES = "_ackledger_names"  # the columns of the record's file, where they are read by name
BETWEEN = "\x1f"  # what stands between the columns in ``NAMES``
MESSAGE = "_ackledger_message"
TEXT = "_ackledger_text"  # of a source: a record as it stands in its file
FILE = "_ackledger_file"  # of a source's snapshot: where the record was read
POSITION = "_ackledger_position"
IDENTITY = "_ackledger_identity"
DELIVERED = "_ackledger_delivered_message"


def is_own(name: str) -> bool:
    """Return whether a column is the ledger's, in upper or lower case."""
    folded = name.lower()
    return folded in PUBLIC or folded.startswith(PREFIX)


def check_names(
    what: str,
    names: Iterable[str],
    *,
    own: frozenset[str] = frozenset(),
    error: type[LedgerError] = StageError,
) -> None:
    """Raise ``error`` if two names differ only in case, or if a name is one of the ledger's or has
    a backtick.

    ``what``: the beginning of the message.
    ``own``: names of the ledger that are allowed, in exactly this case.
    """
    seen: dict[str, str] = {}
    for name in names:
        folded = name.lower()
        if name in own:
            seen[folded] = name
            continue
        meant = next((column for column in own if column == folded), None)
        if is_own(name):
            hint = f"write {meant!r}, or rename it" if meant else "rename it"
            raise error(f"{what} column {name!r}, a name of the ledger: {hint}")
        if "`" in name:
            raise error(
                f"{what} column {name!r}: expected a name without a backtick, by which SQL quotes "
                "names: rename it"
            )
        if folded in seen:
            raise error(
                f"{what} columns {seen[folded]!r} and {name!r}, which are one to Spark, for it "
                "ignores case: rename one"
            )
        seen[folded] = name
