"""The kinds of sources that a pipeline can declare."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from ledger.core.stateful import StatefulSource
from ledger.errors import DeclarationError
from ledger.sources.base import Sought, Source
from ledger.sources.files.kind import Files
from ledger.sources.files.source import FileSource
from ledger.sources.stateful.kind import StatefulKind
from ledger.sources.table.kind import Table
from ledger.sources.table.source import TableSource
from ledger.types.ddl import check_types

AnySource = FileSource | TableSource | StatefulSource | Source
Declared = TypeVar("Declared", bound=type)

_KINDS: dict[type, Callable[[Any], Source]] = {
    FileSource: Files,
    TableSource: Table,
    StatefulSource: StatefulKind,
}


def register(declared: Declared, kind: Callable[[Any], Source] | None = None) -> Declared:
    """Let pipelines declare objects of a class, or of its subclasses, as sources; the class.

    ``kind``: makes the ``Source`` of such an object; None: it is one itself, so that ``@register``
    stands above the class.
    """
    _KINDS[declared] = kind or _itself
    return declared


def source_of(what: str, given: object) -> Source:
    """The source that was declared. ``what``: what declares it, for messages.

    Raises DeclarationError unless its class is registered and it has a schema, of types that are
    known.
    """
    kind = next((_KINDS[one] for one in type(given).__mro__ if one in _KINDS), None)
    if kind is None:
        known = ", ".join(sorted(one.__name__ for one in _KINDS if one is not StatefulSource))
        raise DeclarationError(
            f"{what}: expected {known} or an object of a subclass of StatefulSource, found "
            f"{given!r}. A class of your own is registered with ledger.sources.registry.register"
        )
    schema = getattr(given, "schema", None)
    if not schema:
        raise DeclarationError(
            f"{what}: expected an attribute schema of {type(given).__qualname__}, a StructType or "
            "a DDL string: the columns of its records"
        )
    check_types(what, schema)
    return kind(given)


def lines_of(path: str, sought: Sequence[Sought], layout: Mapping[str, Any]) -> Mapping[int, int]:
    """The line of each record in its file, by its number, from the first kind that finds any by
    the ``layout`` of its source; see ``Source.lines_of``.
    """
    kinds = [
        one for pair in _KINDS.items() for one in pair if Source in getattr(one, "__mro__", ())
    ]
    asked = (cast(type[Source], kind).lines_of(path, sought, layout) for kind in kinds)
    return next(filter(None, asked), {})


def _itself(given: Source) -> Source:
    return given
