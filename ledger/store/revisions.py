"""The revisions of the schema, as the files of its migrations name them."""

from functools import cache
from pathlib import Path

from ledger.errors import ConfigurationError

SCHEMA = "ackledger"  # of all tables, views and functions


def folder() -> Path:
    """Return the folder of the migrations, which is in this package in a wheel, and beside
    ``ledger/`` in a clone.
    """
    store = Path(__file__).parent
    places = (store / "migrations", store.parents[1] / "migrations")
    for place in places:
        if (place / "env.py").exists():
            return place
    raise ConfigurationError(
        f"the ledger's migrations are neither in {places[0]} nor in {places[1]}: install the wheel,"
        " or run from a whole clone"
    )


@cache
def _revisions() -> tuple[str, ...]:
    """Return all revisions, the newest last: a migration's file is called by its number, which is
    its revision.
    """
    return tuple(sorted(path.name.split("_")[0] for path in folder().glob("versions/[0-9]*.py")))


def head() -> str:
    """Return the newest revision of the migrations."""
    return _revisions()[-1]


def is_known(revision: str) -> bool:
    """Return whether the migrations have that revision."""
    return revision in _revisions()
