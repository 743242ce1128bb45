"""Which names columns may have: Spark ignores their case, and the ledger has some of its own."""

from collections.abc import Iterable

from ledger.errors import LedgerError, StageError

ANCHOR = "_anchor"
ANCHORS = "_anchors"
ROOT = "_root"
ROOTS = "_roots"
UNIT = "_unit"
PARENT = "_parent"
INPUT = "_input"
FAILED = "_failed"
DROPPED = "_dropped"
ERROR = "_error"
RAW = "_raw"
NAMES = "_names"  # the columns of the record's file, where they are read by name
MESSAGE = "_message"
FILE = "_file"  # of a source's snapshot: where the record was read
POSITION = "_position"
IDENTITY = "_identity"
DELIVERED = "_delivered_message"
CARRIED = (  # the root of an earlier batch that a replayed record's rows are taken over from
    "_carried"
)
RESERVED = frozenset(
    {
        ANCHOR,
        ANCHORS,
        ROOT,
        ROOTS,
        UNIT,
        PARENT,
        INPUT,
        FAILED,
        DROPPED,
        ERROR,
        RAW,
        NAMES,
        MESSAGE,
        FILE,
        POSITION,
        IDENTITY,
        DELIVERED,
        CARRIED,
    }
)


def check_names(
    what: str,
    names: Iterable[str],
    *,
    own: frozenset[str] = frozenset(),
    taken: frozenset[str] = RESERVED,
    error: type[LedgerError] = StageError,
) -> None:
    """Raise ``error`` unless all names can be told from each other and from the ledger's.

    ``what``: how the sentence begins. ``own``: names of the ledger that are meant, written just so.
    """
    seen: dict[str, str] = {}
    for name in names:
        folded = name.lower()
        if name in own:
            seen[folded] = name
            continue
        meant = next((one for one in own if one == folded), None)
        if folded in taken:
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
