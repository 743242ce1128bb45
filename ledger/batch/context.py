"""The ledger, settings and pipeline that a process works with."""

from typing import TYPE_CHECKING, Protocol

from ledger.pipeline.pipeline import Pipeline
from ledger.settings import Settings

if TYPE_CHECKING:
    from ledger.store.connection import Database


class Context(Protocol):
    """Ledger, settings and pipeline of a driver's job, a task of Airflow, or a command."""

    @property
    def database(self) -> "Database": ...

    @property
    def settings(self) -> Settings: ...

    @property
    def pipeline(self) -> Pipeline: ...
