"""The declaration of a Delta table as a source."""

from dataclasses import KW_ONLY, dataclass

from ledger.core import path_templates
from ledger.core.declarations import Fault, check


@dataclass(frozen=True)
class DeltaSource:
    """A version of a Delta table, or what was appended since the last batch. The table has the
    schema.

    A batch claims a version, and reads its files where they are: nothing is copied, unless a file
    has a deletion vector or a row that does not fit the table's schema.

    ``path``: the table's folder, and a template over ``interval_start``, ``interval_end`` and
    ``params``. Relative paths start from ``ACKLEDGER_DATA``.
    ``version``: the version to read. None: the newest one when the batch opens.
    ``incremental``: a batch takes the rows that were appended after the version that the last batch
    has claimed, whatever its interval. The first batch takes the whole table. Versions that only
    compact files add no rows. A version that deletes or changes rows is refused.

    Raises DeclarationError for a version that is no number, and for one with ``incremental``.
    """

    path: str
    version: int | None = None
    _: KW_ONLY
    incremental: bool = False

    def __post_init__(self) -> None:
        check(self, _FAULTS)
        path_templates.check(self.path)


def _is_no_version(value: object) -> bool:
    return value is not None and (type(value) is not int or value < 0)


_FAULTS: tuple[Fault, ...] = (
    (
        lambda it: not isinstance(it.path, str) or not it.path.strip("/ "),
        "path {it.path!r} of a DeltaSource: expected the folder of a Delta table",
    ),
    (
        lambda it: _is_no_version(it.version),
        "version {it.version!r} of {it.path!r}: expected a number from 0 on, or None for the newest"
        " version",
    ),
    (
        lambda it: it.version is not None and it.incremental,
        "version={it.version!r} of {it.path!r} cannot be combined with incremental=True, which"
        " reads on to the newest version. Remove one",
    ),
)
