"""Folders, local or URLs: whether they can be written to, and their removal."""

import uuid

from ledger.errors import ConfigurationError


def require_writable(folder: str, setting: str) -> None:
    """Raise ConfigurationError, naming ``setting``, unless a file can be made below ``folder``."""
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(folder)
        fs.makedirs(path, exist_ok=True)
        probe = f"{path}/.probe-{uuid.uuid4()}"
        fs.touch(probe)
        fs.rm_file(probe)
    except (OSError, ValueError, ImportError) as exc:
        raise ConfigurationError(
            f"{folder} cannot be written to: {exc}. Make it writable, or set {setting} to another folder"
        ) from exc


def remove_folder(folder: str) -> None:
    """Delete a folder with all that is in it."""
    import fsspec

    fs, path = fsspec.core.url_to_fs(folder)
    fs.rm(path, recursive=True)
