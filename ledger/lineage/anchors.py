"""The hidden columns that name the records of a row, and how rows merge and collect them.

A row of one record has its id in one column of type bigint. A row of several records has either
the list of their ids or three numbers of the ids: count, XOR and sum of their hashes. The numbers
are cheaper in groups, and tell whether all records arrived, but not which.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice
from operator import add
from typing import Any, Protocol

from pyspark.sql import Column
from pyspark.sql import functions as F


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

    def renewed(self, attributes: Sequence[Any]) -> "Anchors":
        """Return the same parts under other attributes."""
        rest = iter(attributes)
        return Anchors(
            tuple(replace(p, attributes=tuple(islice(rest, len(p.attributes)))) for p in self.parts)
        )


class Form(Protocol):
    """Columns by which a row names several records; they end in ``names``. ``id_type``: the type of
    a record's id, in SQL.
    """

    names: tuple[str, ...]
    id_type: str

    def none(self) -> list[Column]:
        """Return the columns of a row without a record."""

    def of_one(self, record_id: Column) -> list[Column]:
        """Return the columns of a row of one record; its id may be NULL."""

    def of_two(self, left: Column, right: Column) -> list[Column]:
        """Return the columns of a row of two records; both ids may be NULL, or one record's."""

    def merged(self, parts: Sequence[Sequence[Column]]) -> list[Column]:
        """Return the columns of a row that has the records of several parts, each in this form."""

    def collected_ids(self, record_id: Column) -> list[Column]:
        """Return the aggregates over rows of one record each."""

    def collected(self, columns: Sequence[Column]) -> list[Column]:
        """Return the aggregates over rows of several records."""

    def finished(self, columns: Sequence[Column]) -> list[Column]:
        """Return the columns of the output; no value is NULL."""


class Lists:
    """A list of ids, array<bigint>. Within a plan it may be NULL; a finished list is not, and has
    each id once.
    """

    names: tuple[str, ...] = ("ids",)
    id_type = "bigint"

    def none(self) -> list[Column]:
        return [_no_ids()]

    def of_one(self, record_id: Column) -> list[Column]:
        return [F.when(record_id.isNotNull(), F.array(record_id))]

    def of_two(self, left: Column, right: Column) -> list[Column]:
        # For each row of a join; array_distinct makes a hash set for each.
        of_left, of_right = F.array(left), F.array(right)
        several = F.when(left.isNull() & right.isNull(), _no_ids())
        several = several.when(right.isNull() | (left == right), of_left)
        return [several.when(left.isNull(), of_right).otherwise(F.array(left, right))]

    def merged(self, parts: Sequence[Sequence[Column]]) -> list[Column]:
        return [F.array_distinct(F.concat(*(F.coalesce(ids, _no_ids()) for (ids,) in parts)))]

    def collected_ids(self, record_id: Column) -> list[Column]:
        return [F.array_distinct(F.collect_list(record_id))]

    def collected(self, columns: Sequence[Column]) -> list[Column]:
        # Equal lists are collected once: a total that was joined to each row has all its records.
        return [F.array_distinct(F.flatten(F.collect_set(columns[0])))]

    def finished(self, columns: Sequence[Column]) -> list[Column]:
        return [F.coalesce(columns[0], _no_ids())]


@dataclass
class RowLists:
    """A list of ids that are structs, such as a stage's rows of its inputs. A list may have an id
    twice, because Spark compares each struct of a list with each other to find out.
    """

    id_type: str
    names: tuple[str, ...] = ("ids",)

    def none(self) -> list[Column]:
        return [F.array().cast(f"array<{self.id_type}>")]

    def of_one(self, record_id: Column) -> list[Column]:
        return [F.when(record_id.isNotNull(), F.array(record_id))]

    def of_two(self, left: Column, right: Column) -> list[Column]:
        return self.merged([self.of_one(left), self.of_one(right)])

    def merged(self, parts: Sequence[Sequence[Column]]) -> list[Column]:
        return [F.concat(*(self.finished(part)[0] for part in parts))]

    def collected_ids(self, record_id: Column) -> list[Column]:
        return [F.collect_list(record_id)]

    def collected(self, columns: Sequence[Column]) -> list[Column]:
        return [F.flatten(F.collect_set(columns[0]))]

    def finished(self, columns: Sequence[Column]) -> list[Column]:
        return [F.coalesce(columns[0], *self.none())]


class Numbers:
    """Count, XOR and sum of the records' hashes, of type bigint.

    XOR alone does not see a record that is there twice, and count and XOR of hashes together with
    their sum are a multiset hash (Clarke et al., ASIACRYPT 2003). The sum is of 32 bits of each
    hash, so it does not overflow below 2^31 rows.
    """

    names: tuple[str, ...] = ("records", "xor", "sum")
    id_type = "bigint"

    def none(self) -> list[Column]:
        return [F.lit(0).cast("bigint")] * 3

    def of_one(self, record_id: Column) -> list[Column]:
        hashed = F.xxhash64(record_id)
        some = record_id.isNotNull()
        low = hashed.bitwiseAND(F.lit(0xFFFFFFFF).cast("bigint"))
        return [
            F.when(some, value.cast("bigint")).otherwise(F.lit(0).cast("bigint"))
            for value in (F.lit(1), hashed, low)
        ]

    def of_two(self, left: Column, right: Column) -> list[Column]:
        return self.merged([self.of_one(left), self.of_one(right)])

    def merged(self, parts: Sequence[Sequence[Column]]) -> list[Column]:
        counts, xors, sums = zip(*map(_zeroed, parts), strict=True)
        return [reduce(add, counts), reduce(Column.bitwiseXOR, xors), reduce(add, sums)]

    def collected_ids(self, record_id: Column) -> list[Column]:
        return self.collected(self.of_one(record_id))

    def collected(self, columns: Sequence[Column]) -> list[Column]:
        count, xor, total = columns
        return _zeroed([F.sum(count), F.bit_xor(xor), F.sum(total)])

    def finished(self, columns: Sequence[Column]) -> list[Column]:
        return _zeroed(columns)


LISTS: Form = Lists()
NUMBERS: Form = Numbers()


def _no_ids() -> Column:
    return F.array().cast("array<bigint>")


def _zeroed(columns: Sequence[Column]) -> list[Column]:
    return [F.coalesce(column, F.lit(0).cast("bigint")) for column in columns]
