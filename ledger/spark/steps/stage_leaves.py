"""Inputs of a stage as the leaves of its function's plan, whose rows are followed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType

from ledger.auditing import ids as record_ids
from ledger.auditing.ids import Ids
from ledger.auditing.sources import ID, Leaf, Sources
from ledger.core.column_names import ANCHOR
from ledger.lineage.anchors import Anchors
from ledger.lineage.carrier import Carried
from ledger.lineage.carry import Following
from ledger.lineage.catalyst import Catalyst, Node
from ledger.spark.frames.stored import local_numbers


@dataclass
class StageLeaf:
    """An input of a stage. The id of a row is its position.

    ``is_list``: whether a row may have several records.
    """

    following: Following
    number: int
    name: str
    is_list: bool
    is_restrictable: bool = True

    @property
    def numbers(self) -> tuple[int, ...]:
        return (self.number,)

    def ids_of(self, source: int) -> Ids:
        raise NotImplementedError("an audit alone asks for all rows of an input")

    def carried(
        self, catalyst: Catalyst, node: Node, occurrence: int, only: Mapping[int, DataFrame]
    ) -> Carried:
        first = record_ids.first_id(self.number) + (occurrence << record_ids.ROW_BITS)

        def parent(anchor: Column) -> Column:
            return (anchor[0] if self.is_list else anchor)["parent"]

        def restricted(rows: DataFrame, anchor: Column) -> DataFrame:
            wanted = F.broadcast(only[self.number])
            record = parent(anchor) + F.lit(record_ids.first_id(self.number))
            return rows.join(wanted, record == wanted[ID], "left_semi")

        plan, own = self.following.with_column(
            node,
            lambda anchor: parent(anchor) + F.lit(first),
            restricted if self.number in only else None,
        )
        return plan, Anchors.of_id(own)


class StageLeaves(Sources):
    """The inputs of a stage, which are read in place."""

    def __init__(self, following: Following) -> None:
        super().__init__(following.catalyst, Path())
        self._following = following
        self._leaves = [
            StageLeaf(following, number, name, isinstance(rows.schema[ANCHOR].dataType, ArrayType))
            for number, (name, rows) in enumerate(following.inputs.items())
        ]

    def leaf_of(self, node: Node) -> Leaf | None:
        number = self._following.number_of(node)
        return None if number is None else self._leaves[number]

    def frame_of(self, values: Ids) -> DataFrame:
        return local_numbers(self.catalyst.spark, ID, pa.array(values))

    def part_of(self, source: int, wanted: Ids) -> DataFrame:
        return self.frame_of(wanted)
