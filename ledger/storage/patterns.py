"""Files by patterns: ``*``, ``?`` and ``[...]`` within a name, ``**`` over folders; ``[[]``,
``[*]`` and ``[?]`` are these characters themselves."""

import errno
import os
import re
from collections.abc import Iterator

from ledger.core.paths import is_local, without_file_scheme
from ledger.errors import ConfigurationError
from ledger.storage import stores

_MAGIC = re.compile(r"[*?[]")
_ESCAPED = re.compile(r"\[([*?[])\]")  # one of these as itself, as ``glob.escape`` writes it


def matching(pattern: str) -> list[stores.Entry]:
    """The files whose paths a pattern matches, by path. A link is what it leads to; ``**`` enters
    none, and of several paths to one file that one counts that has the fewest. Raises OSError
    where a folder that the pattern leads into cannot be listed."""
    names = stores.place_of(pattern).split("/")
    first = next((n for n, name in enumerate(names) if _literal(name) is None), None)
    if first is None:
        entry = stores.info(_unescaped(pattern))
        return [] if entry is None or entry.is_folder else [entry]
    names = names[first:]
    folder = _unescaped(pattern.removesuffix("/".join(names))).rstrip("/") or "/"
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
        files.setdefault(real, entry)
    return sorted(files.values(), key=lambda entry: entry.path)


def _matched(folder: str, names: list[str], links: int = 0) -> Iterator[tuple[stores.Entry, int]]:
    """The files below a folder at paths of which each part matches one of these; and how many links
    led there."""
    from fsspec.utils import glob_translate

    here = folder.rstrip("/")
    if "**" in names[0]:
        below = re.compile(glob_translate("/".join(names)))
        shown = [file for file in stores.walked(folder) if below.match(file.path[len(here) + 1 :])]
        names = names[:1]
    elif (name := _literal(names[0])) is not None:
        shown = list(filter(None, [stores.info(f"{here}/{name}")]))
    else:
        wanted = re.compile(glob_translate(names[0]))
        shown = [entry for entry in stores.entries(folder) if wanted.match(entry.name)]
    for entry in shown:
        followed = links + bool(entry.info.get("islink"))
        target = _followed(entry)
        if target is None or target.is_folder != (len(names) > 1):
            continue
        if target.is_folder:
            yield from _matched(target.path, names[1:], followed)
        else:
            yield target, followed


def _literal(name: str) -> str | None:
    """The only name that a part of a pattern matches; None: it may match several."""
    return None if _MAGIC.search(_ESCAPED.sub("", name)) else _unescaped(name)


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(r"\1", text)


def _followed(entry: stores.Entry) -> stores.Entry | None:
    """What a link leads to; None: nowhere, or to itself."""
    if not entry.info.get("islink"):
        return entry
    try:
        return stores.info(entry.path)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            return None
        raise
