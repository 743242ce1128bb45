"""Check that a store renames a folder in one step, which publishes a folder of Parquet files: see
docs/decisions/040-stores.md.
"""

from contextlib import suppress
from uuid import uuid4

from ledger.core.paths import is_local
from ledger.errors import ConfigurationError, DeclarationError, LedgerError
from ledger.sinks.folder import STAGING_FOLDER
from ledger.storage import stores

_INSTEAD = (
    "Use DeltaSink there, which publishes by one commit of the table's log, or PostgresSink; or"
    " name a local folder, or a webhdfs:// of HDFS"
)


def require_renaming_scheme(path: str) -> None:
    """Raise DeclarationError for a URL of a store that copies a folder instead of renaming it, and
    ConfigurationError for a URL with a password.
    """
    stores.require_no_password(path)
    scheme = path.partition("://")[0]
    # An object store copies each file to its new name.
    if scheme != "webhdfs" and not is_local(path):
        raise DeclarationError(
            f"ParquetSink at {path!r}: expected a store that renames a folder in one step, found"
            f" {scheme}://: where a folder is copied file by file, readers see a part of a batch."
            f" {_INSTEAD}"
        )


def require_renames(path: str) -> None:
    """Raise as ``require_renaming_scheme`` does, and raise ConfigurationError unless a test rename
    of a folder below ``path`` succeeds. A store may use HDFS's protocol without being HDFS.
    """
    require_renaming_scheme(path)
    if is_local(path):
        return
    probe = f"{path}/{STAGING_FOLDER}/.probe-{uuid4()}"
    try:
        stores.write(f"{probe}/file", b"ackledger")
        stores.move(probe, f"{probe}-renamed")
    except PermissionError as exc:
        raise ConfigurationError(
            f"ParquetSink at {path!r}: expected a folder that this process may write to; the store"
            f" refused: {exc}. Check the login, and its rights there, then run this again"
        ) from exc
    except (OSError, ValueError, NotImplementedError) as exc:
        raise ConfigurationError(
            f"ParquetSink at {path!r}: expected a store that renames a folder in one step; this one"
            f" does not: {exc}. {_INSTEAD}"
        ) from exc
    finally:
        for folder in (probe, f"{probe}-renamed"):
            with suppress(OSError, LedgerError):  # what was raised before says more
                stores.remove_folder(folder)
