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
CONN_ID = "ACKLEDGER_CONN_ID"  # Airflow's connection that the address in the environment is from
_LOG_FORMAT = "ACKLEDGER_LOG_FORMAT"


class Settings(BaseSettings):
    """Settings from the environment: places, and defaults of pipelines and drivers.

    ``ACKLEDGER_HOME``: the folder of the embedded database and of everything local, default
    ``var``.
    ``ACKLEDGER_STORAGE``: the path or URL of snapshots and stage outputs, default
    ``$ACKLEDGER_HOME/storage``.
    ``ACKLEDGER_DATABASE_URL``: the URL of the ledger, ``postgresql+psycopg2://...``, default the
    embedded database.
    ``ACKLEDGER_READER_URL``: the login of ``ackledger sql``, default ``ledger_sql`` in the ledger.
    ``ACKLEDGER_GUARANTEE``: the guarantee of pipelines that declare none, ``exactly_once``
    (default) or ``at_least_once``.
    ``ACKLEDGER_VERBOSE``: whether errors are printed with their traceback (see ``verbose``).
    ``ACKLEDGER_LOG_FORMAT``: the log format of drivers, ``text`` (default) or ``json`` (see
    ``log_format``).
    ``ACKLEDGER_DATA``: the folder from which relative paths of sources start, default ``.``.
    ``ACKLEDGER_OUTPUT``: the folder from which relative paths of sinks start, default the folder of
    the data.
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
        """Return the storage as an absolute path or URL, without a slash at its end."""
        root = self.storage if self.storage is not None else str(self.home / "storage")
        return absolute(root)

    def data_path(self, path: str) -> str:
        """Return the pattern of a source as an absolute path or URL. A relative one starts from the
        data folder, whose own name is escaped: it is no pattern.
        """
        return _below(glob.escape(absolute(self.data or ".")), path)

    def table_path(self, path: str) -> str:
        """Return the path of a table that is read as an absolute path or URL. A relative one starts
        from the data folder.
        """
        return _below(self.data or ".", path)

    def output_path(self, path: str) -> str:
        """Return the path of a sink as an absolute path or URL. A relative one starts from the
        output folder.
        """
        return _below(self.output or self.data, path)


def verbose() -> bool:
    """Return whether ``ACKLEDGER_VERBOSE`` is set to anything but 0, false or no. No other setting
    is read, so the answer is known even if ``Settings`` cannot be built.
    """
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
    """Return a local path as an absolute path, without ``file:``; a URL without slashes at its end.

    The path begins with a single slash, because Hadoop takes a name after two slashes for a host.
    """
    path = without_file_scheme(path)
    if not is_local(path):
        return path.rstrip("/")
    return re.sub("^/+", "/", str(Path(os.path.expanduser(path)).absolute()))
