"""The hidden columns that name the records of a row, and how rows merge and collect them.

A row of one record has its id in one column of type bigint. A row of several records has either
the list of their ids or three numbers of the ids: count, XOR and sum of their hashes. The numbers
are cheaper in groups, and tell whether all records arrived, but not which.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any, Protocol

from ledger.deltas.stored import LOW_BITS


@dataclass(frozen=True)
class AnchorPart:
    """Hidden columns that name records of a row: the id of at most one record, or several records
    in a form's columns. ``attributes``: the columns' attributes in the JVM.
    """

    is_id: bool
    attributes: tuple[Any, ...]


@dataclass(frozen=True)
class Anchors:
    """The hidden columns that name the records of a plan's rows. A join keeps the parts of both
    sides apart, so that Spark may still reorder it.
    """

    parts: tuple[AnchorPart, ...]

    @classmethod
    def of_id(cls, attribute: Any) -> "Anchors":
        """Return the anchors of rows of at most one record, whose id an attribute is."""
        return cls((AnchorPart(True, (attribute,)),))

    @property
    def attributes(self) -> list[Any]:
        """The hidden attributes of all parts."""
        return [attribute for part in self.parts for attribute in part.attributes]

    @property
    def is_id(self) -> bool:
        """Whether a row has at most one record, whose id is the only hidden column."""
        return len(self.parts) == 1 and self.parts[0].is_id

    def named(self, first: int = 0) -> list[list[str]]:
        """Return the names of the attributes of each part in SQL: ``a0``, ``a1``, ... from a
        number.
        """
        numbers = count(first)
        return [[f"a{next(numbers)}" for _ in part.attributes] for part in self.parts]

    def renewed(self, attributes: Sequence[Any]) -> "Anchors":
        """Return the same parts under other attributes."""
        rest = iter(attributes)
        return Anchors(
            tuple(replace(p, attributes=tuple(islice(rest, len(p.attributes)))) for p in self.parts)
        )


class Form(Protocol):
    """Columns by which a row names several records, in SQL; they end in ``names``. ``id_type``: the
    type of a record's id.
    """

    names: tuple[str, ...]
    id_type: str

    def none(self) -> list[str]:
        """Return the columns of a row without a record."""

    def of_one(self, record_id: str) -> list[str]:
        """Return the columns of a row of one record; its id may be NULL."""

    def of_two(self, left: str, right: str) -> list[str]:
        """Return the columns of a row of two records; both ids may be NULL, or one record's."""

    def merged(self, parts: Sequence[Sequence[str]]) -> list[str]:
        """Return the columns of a row that has the records of several parts, each in this form."""

    def collected_ids(self, record_id: str) -> list[str]:
        """Return the aggregates over rows of one record each."""

    def collected(self, columns: Sequence[str]) -> list[str]:
        """Return the aggregates over rows of several records."""

    def finished(self, columns: Sequence[str]) -> list[str]:
        """Return the columns of the output; no value is NULL."""


class Lists:
    """A list of ids, array<bigint>. Within a plan it may be NULL; a finished list is not, and has
    each id once.
    """

    names: tuple[str, ...] = ("ids",)
    id_type = "bigint"

    def none(self) -> list[str]:
        return [_NO_IDS]

    def of_one(self, record_id: str) -> list[str]:
        return [_list_of_one(record_id)]

    def of_two(self, left: str, right: str) -> list[str]:
        # For each row of a join; array_distinct makes a hash set for each.
        return [
            f"CASE WHEN {left} IS NULL AND {right} IS NULL THEN {_NO_IDS}"
            f" WHEN {right} IS NULL OR {left} = {right} THEN array({left})"
            f" WHEN {left} IS NULL THEN array({right}) ELSE array({left}, {right}) END"
        ]

    def merged(self, parts: Sequence[Sequence[str]]) -> list[str]:
        lists = ", ".join(f"coalesce({ids}, {_NO_IDS})" for (ids,) in parts)
        return [f"array_distinct(concat({lists}))"]

    def collected_ids(self, record_id: str) -> list[str]:
        return [f"array_distinct(collect_list({record_id}))"]

    def collected(self, columns: Sequence[str]) -> list[str]:
        # Equal lists are collected once: a total that was joined to each row has all its records.
        return [f"array_distinct(flatten(collect_set({columns[0]})))"]

    def finished(self, columns: Sequence[str]) -> list[str]:
        return [f"coalesce({columns[0]}, {_NO_IDS})"]


@dataclass
class RowLists:
    """A list of ids that are structs, such as a stage's rows of its inputs. A list may have an id
    twice, because Spark compares each struct of a list with each other to find out.
    """

    id_type: str
    names: tuple[str, ...] = ("ids",)

    def none(self) -> list[str]:
        return [f"CAST(array() AS array<{self.id_type}>)"]

    def of_one(self, record_id: str) -> list[str]:
        return [_list_of_one(record_id)]

    def of_two(self, left: str, right: str) -> list[str]:
        return self.merged([self.of_one(left), self.of_one(right)])

    def merged(self, parts: Sequence[Sequence[str]]) -> list[str]:
        return [f"concat({', '.join(self.finished(part)[0] for part in parts)})"]

    def collected_ids(self, record_id: str) -> list[str]:
        return [f"collect_list({record_id})"]

    def collected(self, columns: Sequence[str]) -> list[str]:
        return [f"flatten(collect_set({columns[0]}))"]

    def finished(self, columns: Sequence[str]) -> list[str]:
        return [f"coalesce({columns[0]}, {self.none()[0]})"]


class Numbers:
    """Count, XOR and sum of the records' hashes, of type bigint.

    XOR alone does not see a record that is there twice, and count and XOR of hashes together with
    their sum are a multiset hash (Clarke et al., ASIACRYPT 2003). The sum is of the ``LOW_BITS`` of
    each hash, as in a ``Checksum``, so it does not overflow below 2^32 rows.
    """

    names: tuple[str, ...] = ("records", "xor", "sum")
    id_type = "bigint"

    def none(self) -> list[str]:
        return ["0L"] * 3

    def of_one(self, record_id: str) -> list[str]:
        hashed = f"xxhash64({record_id})"
        values = "1L", hashed, f"({hashed} & {LOW_BITS}L)"
        return [f"CASE WHEN {record_id} IS NOT NULL THEN {value} ELSE 0L END" for value in values]

    def of_two(self, left: str, right: str) -> list[str]:
        return self.merged([self.of_one(left), self.of_one(right)])

    def merged(self, parts: Sequence[Sequence[str]]) -> list[str]:
        columns = zip(*map(_zeroed, parts), strict=True)
        return [f" {by} ".join(values) for by, values in zip("+^+", columns, strict=True)]

    def collected_ids(self, record_id: str) -> list[str]:
        return self.collected(self.of_one(record_id))

    def collected(self, columns: Sequence[str]) -> list[str]:
        totals = ("sum", "bit_xor", "sum")
        return _zeroed([f"{by}({value})" for by, value in zip(totals, columns, strict=True)])

    def finished(self, columns: Sequence[str]) -> list[str]:
        return _zeroed(columns)


@dataclass
class RowNumbers:
    """The ``Numbers`` of a stage's rows as one struct. An id is a struct, such as a stage's row of
    its input; its hash is that of its fields one after the other.
    """

    id_type: str
    names: tuple[str, ...] = ("numbers",)

    def none(self) -> list[str]:
        return _struct(NUMBERS.none())

    def of_one(self, record_id: str) -> list[str]:
        return _struct(NUMBERS.of_one(record_id))

    def of_two(self, left: str, right: str) -> list[str]:
        return _struct(NUMBERS.of_two(left, right))

    def merged(self, parts: Sequence[Sequence[str]]) -> list[str]:
        return _struct(NUMBERS.merged([_fields(column) for (column,) in parts]))

    def collected_ids(self, record_id: str) -> list[str]:
        return _struct(NUMBERS.collected_ids(record_id))

    def collected(self, columns: Sequence[str]) -> list[str]:
        return _struct(NUMBERS.collected(_fields(columns[0])))

    def finished(self, columns: Sequence[str]) -> list[str]:
        return [f"coalesce({columns[0]}, {self.none()[0]})"]


LISTS: Form = Lists()
NUMBERS: Form = Numbers()
_NO_IDS = "CAST(array() AS array<bigint>)"


def _list_of_one(record_id: str) -> str:
    return f"CASE WHEN {record_id} IS NOT NULL THEN array({record_id}) END"


def _zeroed(columns: Sequence[str]) -> list[str]:
    return [f"coalesce({column}, 0L)" for column in columns]


def _struct(columns: Sequence[str]) -> list[str]:
    """Return count, XOR and sum as one column."""
    fields = ", ".join(
        f"'{name}', {column}" for name, column in zip(NUMBERS.names, columns, strict=True)
    )
    return [f"named_struct({fields})"]


def _fields(column: str) -> list[str]:
    """Return count, XOR and sum of one column."""
    return [f"{column}.{name}" for name in NUMBERS.names]
