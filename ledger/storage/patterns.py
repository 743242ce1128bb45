"""Files by patterns: ``*``, ``?`` and ``[...]`` within a name, ``**`` over folders; ``[[]``,
``[*]`` and ``[?]`` are these characters themselves.

A wildcard skips folders that begin with ``.`` and folders that writers use, because their files may
be unpublished. A file below another folder that begins with ``_`` is an error. To read either kind,
ask for it in the pattern: see ``asks_for``.
"""

import errno
import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ledger.core.paths import is_local, without_file_scheme
from ledger.errors import ConfigurationError, InputError
from ledger.storage import stores

_MAGIC = re.compile(r"[*?[]")
_ESCAPED = re.compile(r"\[([*?[])\]")  # one of these as itself, as ``glob.escape`` writes it
_HIDDEN = re.compile(r"\.|_[^=]*\Z")
# Names of writers: this library, Hadoop, Spark, Delta Lake, Databricks, Hive, Impala, S3A, macOS.
_WRITERS = re.compile(
    r"\..*|_(?:staging|SUCCESS|spark_metadata|delta_log|delta_index|change_data|checkpoints?"
    r"|symlink_format_manifest|impala_insert_staging|_MACOSX"
    r"|(?:temporary|started|committed|tmp\.|task_tmp\.|_magic).*)\Z",
    re.DOTALL,
)
_CLASS = re.compile(r"\[(?!!)\]?[^]]*\]")  # of characters that are listed, not excluded


def matching(pattern: str) -> list[stores.Entry]:
    """Return the files that a pattern matches, sorted by path.

    A link stands for its target; ``**`` does not follow links to folders. If several paths lead to
    one file, the path with the fewest links counts. Raises OSError if a folder of the pattern
    cannot be listed.
    """
    names = stores.place_of(pattern).split("/")
    for name in names:
        if "**" in name and name != "**":
            raise ConfigurationError(
                f"{pattern}: expected ** as the name of folders, found it in {name!r}: write * for"
                " any characters of one name, [*][*] for these two"
            )
    first = next((n for n, name in enumerate(names) if _literal(name) is None), None)
    if first is None:
        entry = stores.info(unescaped(pattern))
        return [] if entry is None or entry.is_folder else [_as_spark_opens(entry)]
    names = names[first:]
    folder = unescaped(pattern.removesuffix("/".join(names))).rstrip("/") or "/"
    local = is_local(pattern)
    if not local and "://" not in folder:
        raise ConfigurationError(
            f"{pattern}: expected wildcards in names of files and folders, found one in what stands"
            " right behind ://"
        )
    matched = sorted(_matched(folder, names), key=lambda each: (each[1], each[0].path))
    files: dict[str, stores.Entry] = {}
    for entry, _ in matched:
        real = os.path.realpath(without_file_scheme(entry.path)) if local else entry.path
        files.setdefault(real, _as_spark_opens(entry))
    return sorted(files.values(), key=lambda entry: entry.path)


def is_hidden(name: str) -> bool:
    """Return whether Spark skips a file or folder of this name when it lists a folder."""
    return _HIDDEN.match(name) is not None


def asks_for(section: str, hidden: str) -> bool:
    """Return whether a section of a pattern explicitly matches a hidden name: it matches the name,
    and begins with the same character. A class of characters that lists this character counts as
    well, except for the names of writers' folders.
    """
    from fsspec.utils import glob_translate

    listed = None if _WRITERS.match(hidden) else _CLASS.match(section)
    first = section[:1] if listed is None else listed[0]
    return hidden[0] in first and re.match(glob_translate(section), hidden) is not None


def _matched(folder: str, names: list[str], links: int = 0) -> Iterator[tuple[stores.Entry, int]]:
    """Yield the files below a folder that the pattern matches, each with the number of links on its
    path.

    ``names``: the sections of the pattern.

    Raises InputError for a file in a hidden folder that the pattern does not ask for.
    """
    from fsspec.utils import glob_translate

    here = folder.rstrip("/")
    if names[0] == "**":
        below = re.compile(glob_translate("/".join(names)))
        files = _walked(folder, names[:-1])
        shown = [file for file in files if below.match(file.path[len(here) + 1 :])]
        for file in shown:
            _require_asked(file, file.path[len(here) + 1 :].split("/")[:-1], names[:-1])
        names = names[:1]
    elif (name := _literal(names[0])) is not None:
        shown = list(filter(None, [stores.info(f"{here}/{name}")]))
    else:
        wanted = re.compile(glob_translate(names[0]))
        shown = [entry for entry in stores.entries(folder) if wanted.match(entry.name)]
        if len(names) > 1:
            shown = [entry for entry in shown if not _is_skipped(entry.name, names[:1])]
    for entry in shown:
        is_link = bool(entry.info.get("islink"))
        try:
            target = stores.info(entry.path) if is_link else entry
        except OSError as exc:
            if exc.errno != errno.ELOOP:  # of a link that leads to itself
                raise
            target = None
        if target is None or target.is_folder != (len(names) > 1):
            continue
        followed = links + is_link
        if target.is_folder:
            for file, count in _matched(target.path, names[1:], followed):
                _require_asked(file, [entry.name], names[:1])
                yield file, count
        else:
            yield target, followed


def _walked(folder: str, names: Sequence[str]) -> Iterator[stores.Entry]:
    """Yield all files below a folder, except in writers' folders that no section of ``names`` asks
    for.
    """
    for entry in stores.entries(folder):
        if not entry.is_folder:
            yield entry
        elif not _is_skipped(entry.name, names):
            yield from _walked(entry.path, names)


def _is_skipped(folder: str, names: Sequence[str]) -> bool:
    """Return whether a folder has the name of a writer's folder, and no section of ``names`` asks
    for it.
    """
    return bool(_WRITERS.match(folder)) and not any(asks_for(name, folder) for name in names)


def _require_asked(file: stores.Entry, folders: Sequence[str], names: Sequence[str]) -> None:
    """Raise InputError for a visible file in a hidden folder that no section of ``names`` asks for.
    A hidden file is no error.

    ``folders``: the names of the folders above the file.
    ``names``: the sections of the path's pattern.
    """
    if is_hidden(file.name):
        return
    for folder in filter(is_hidden, folders):
        if not any(asks_for(name, folder) for name in names):
            raise InputError(
                f"source file {file.path}: expected no wildcard for the folder {folder}, whose name"
                " begins with _, as those of unpublished files do. To read it, write"
                f" {glob.escape(folder)} in the path, or [_a-z]* to read others as well. To leave"
                " it out, write [!_]* in place of the wildcard, or rename the folder so that it"
                " begins with a dot"
            )


def _as_spark_opens(entry: stores.Entry) -> stores.Entry:
    """Resolve ``..`` in the path of an entry. Spark would drop ``name/..`` even if ``name`` is a
    link, and open another file.
    """
    if not is_local(entry.path) or "/../" not in entry.path:
        return entry
    return replace(entry, path=os.path.realpath(without_file_scheme(entry.path)))


def _literal(name: str) -> str | None:
    """Return the only name that a section of a pattern matches; None if it may match several
    names.
    """
    return None if _MAGIC.search(_ESCAPED.sub("", name)) else unescaped(name)


def unescaped(text: str) -> str:
    """Return a pattern with its escapes, such as ``[*]``, replaced by the character itself."""
    return _ESCAPED.sub(r"\1", text)
