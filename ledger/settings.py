"""Settings from the environment, prefix ``ACKLEDGER_``; read when asked for, never at import."""

import glob
import os
import re
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from ledger.core.logs import LogFormat
from ledger.core.paths import is_local, without_file_scheme
from ledger.core.states import Guarantee

VERBOSE = "ACKLEDGER_VERBOSE"
_LOG_FORMAT = "ACKLEDGER_LOG_FORMAT"


class Settings(BaseSettings):
    """Settings of ackledger: its places, and defaults of pipelines and drivers.

    ``ACKLEDGER_HOME``: embedded database and everything local, default ``var``.
    ``ACKLEDGER_STORAGE``: snapshots and stage outputs, a path or URL, default
    ``$ACKLEDGER_HOME/storage``. ``ACKLEDGER_DATABASE_URL``: the ledger,
    ``postgresql+psycopg2://...``, default the embedded database. ``ACKLEDGER_READER_URL``: the
    login of ``ackledger sql``, default ``ledger_sql`` there. ``ACKLEDGER_GUARANTEE``: of
    pipelines that name none, ``exactly_once`` (default) or ``at_least_once``.
    ``ACKLEDGER_VERBOSE``: whether an error comes with its traceback (see ``verbose``).
    ``ACKLEDGER_LOG_FORMAT``: of drivers, ``text`` (default) or ``json`` (see ``log_format``).
    ``ACKLEDGER_DATA``: the folder that relative paths of sources start from, default ``.``.
    ``ACKLEDGER_OUTPUT``: the folder that relative paths of sinks start from, default that of the
    data.
    """

    model_config = SettingsConfigDict(env_prefix="ACKLEDGER_", extra="ignore")

    home: Path = Path("var")
    storage: str | None = None
    database_url: str | None = Field(default=None, repr=False)  # these may hold a password
    reader_url: str | None = Field(default=None, repr=False)
    data: str = "."
    output: str | None = None
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    log_format: LogFormat = LogFormat.TEXT

    def storage_root(self) -> str:
        """The storage as an absolute path or URL, without a slash at its end."""
        root = self.storage if self.storage is not None else str(self.home / "storage")
        return absolute(root)

    def data_path(self, path: str) -> str:
        """The pattern of a source: itself if absolute or a URL, else below the data folder, whose
        own name is no pattern."""
        return _below(glob.escape(absolute(self.data or ".")), path)

    def output_path(self, path: str) -> str:
        """The path of a sink: itself if absolute or a URL, else below the output folder."""
        return _below(self.output or self.data, path)


def verbose() -> bool:
    """Whether ``ACKLEDGER_VERBOSE`` is set, also while the other settings are wrong."""
    return os.environ.get(VERBOSE, "").lower() not in ("", "0", "false", "no")


def log_format() -> LogFormat:
    """Return the log format in ``ACKLEDGER_LOG_FORMAT``, or text if it is unset or invalid. No
    other setting is read, so the format is known even if ``Settings`` cannot be built. ``Settings``
    reports an invalid value.
    """
    value = os.environ.get(_LOG_FORMAT, "")
    return LogFormat(value) if value in list(LogFormat) else LogFormat.TEXT


def _below(folder: str, path: str) -> str:
    path = without_file_scheme(path)
    if not is_local(path):
        return path
    return absolute(path if path.startswith("/") else f"{folder.rstrip('/')}/{path}")


def absolute(path: str) -> str:
    """A local path made absolute, also one with ``file:`` before it; a URL as it is. It begins with
    one slash: Hadoop takes a name behind two for that of a host.
    """
    path = without_file_scheme(path)
    if not is_local(path):
        return path.rstrip("/")
    return re.sub("^/+", "/", str(Path(os.path.expanduser(path)).absolute()))
