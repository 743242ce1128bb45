"""The kinds of sources that a pipeline can declare."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from ledger.errors import DeclarationError
from ledger.sources.base import Sought, Source
from ledger.sources.delta.kind import DeltaVersions
from ledger.sources.delta.source import DeltaSource
from ledger.sources.files.kind import Files
from ledger.sources.files.source import FileSource
from ledger.sources.offsets import Offsets, OffsetSource
from ledger.sources.sql.kind import Table
from ledger.sources.sql.source import SqlSource
from ledger.types.ddl import check_types

AnySource = DeltaSource | FileSource | SqlSource | OffsetSource | Source
Declared = TypeVar("Declared", bound=type)

_KINDS: dict[type, Callable[[Any], Source]] = {
    DeltaSource: DeltaVersions,
    FileSource: Files,
    SqlSource: Table,
    OffsetSource: Offsets,
}


def register(declared: Declared, kind: Callable[[Any], Source] | None = None) -> Declared:
    """Let pipelines declare objects of a class, or of its subclasses, as sources. Return the class.

    ``kind``: makes the ``Source`` of such an object. None: the object is a ``Source``; use
    ``@register`` above its class.
    """
    _KINDS[declared] = kind or (lambda source: source)
    return declared


def source_of(what: str, declaration: object) -> Source:
    """Return the source that was declared.

    Raises DeclarationError unless its class is registered and it has a schema of known types, or
    describes itself.

    ``what``: the place of the declaration, for messages.
    """
    kind = next((_KINDS[cls] for cls in type(declaration).__mro__ if cls in _KINDS), None)
    if kind is None:
        names = ", ".join(sorted(cls.__name__ for cls in _KINDS if cls is not OffsetSource))
        raise DeclarationError(
            f"{what}: expected {names} or an object of a subclass of OffsetSource, found "
            f"{declaration!r}. A class of your own is registered with "
            "ledger.sources.registry.register"
        )
    if any(getattr(each, "describes_itself", False) for each in (kind, declaration)):
        return kind(declaration)
    schema = getattr(declaration, "schema", None)
    if not schema:
        raise DeclarationError(
            f"{what}: expected an attribute schema of {type(declaration).__qualname__}, a"
            " StructType or a DDL string: the columns of its records"
        )
    check_types(what, schema)
    return kind(declaration)


def lines_of(path: str, sought: Sequence[Sought], layout: Mapping[str, Any]) -> Mapping[int, int]:
    """Return the line of each record in its file, by its number; see ``Source.lines_of``.

    The first kind of source that finds lines by the ``layout`` answers.
    """
    kinds = [
        kind for pair in _KINDS.items() for kind in pair if Source in getattr(kind, "__mro__", ())
    ]
    asked = (cast(type[Source], kind).lines_of(path, sought, layout) for kind in kinds)
    return next(filter(None, asked), {})
