"""Outputs of an audited job: their plans, and the records in their rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ledger.auditing import ids as record_ids
from ledger.auditing.attribution import Attribution
from ledger.auditing.comma_joins import with_join_conditions
from ledger.auditing.file_names import without_file_names
from ledger.auditing.ids import NO_IDS, Ids
from ledger.auditing.routes import Route, main_routes, on_main_routes, sources_in
from ledger.lineage.anchors import AnchorPart, Anchors
from ledger.lineage.carrier import Carried
from ledger.lineage.catalyst import Catalyst, Node
from ledger.lineage.nodes import simple_name

HIDDEN = "__ackledger_ids"
# A plan of these alone copies its input.
_COPYING = frozenset(
    {
        "Project",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "Sort",
        "SubqueryAlias",
        "Union",
        "View",
    }
)


@dataclass
class AuditOutput:
    """Rows that a job writes, or a function returns.

    Attributes:
        name: the path or table, as the user wrote it.
        place: the line that wrote it.
        attribution: its plan; None: its rows are not followed.
        why: the reason for that.
        sources: the numbers of all sources in its plan, also of consulted ones.
        routes: the main routes to its rows.
        reads: the outputs that its plan reads.
        replaced_at: the line of a later write that replaced it, or that dropped it; empty: none
            did.
        dropped_by: the statement or call that dropped it there; empty: none did.
    """

    name: str
    place: str
    attribution: Attribution | None = None
    why: str = ""
    sources: frozenset[int] = frozenset()
    routes: Sequence[Route] = ()
    reads: list["AuditOutput"] = field(default_factory=list)
    replaced_at: str = ""
    dropped_by: str = ""

    @cached_property
    def arrived(self) -> Ids:
        """The records in its rows that came on a main route, sorted."""
        if self.attribution is None:
            return NO_IDS
        return on_main_routes(self.attribution.arrived_ids(), self.routes)

    @property
    def is_copy(self) -> bool:
        """Whether its rows are those of its inputs, without a filter, a join or a group."""
        return self.attribution is not None and _copies(self.attribution, self.attribution.plan)

    def follow(
        self,
        attribution: Attribution,
        prepared: Callable[[Attribution], Attribution] = without_file_names,
    ) -> None:
        """Store the attribution of the output, so that its rows are followed. Raises CarryError if
        they cannot be followed.

        ``prepared``: returns an attribution whose plan does not read file names.
        """
        self.sources |= frozenset(sources_in(attribution, attribution.plan))
        attribution = prepared(with_join_conditions(attribution))
        self.routes = main_routes(attribution, attribution.plan)
        self.attribution = attribution


@dataclass
class OutputLeaf:
    """A leaf that reads outputs of the same job. Their files have a column ``hidden`` with the ids
    of each row's records on main routes, without an occurrence.

    ``is_text``: whether the ids are stored as a text.
    """

    outputs: Sequence[AuditOutput]
    hidden: str
    is_text: bool
    is_restrictable: bool = False

    @property
    def name(self) -> str:
        return ", ".join(output.name for output in self.outputs)

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(sorted({route.source for each in self.outputs for route in each.routes}))

    def ids_of(self, source: int) -> Ids:
        ids = record_ids.union(output.arrived for output in self.outputs)
        return cast(Ids, ids[record_ids.sources_of(ids) == source])

    def carried(
        self, catalyst: Catalyst, node: Node, occurrence: int, only: Mapping[int, DataFrame]
    ) -> Carried:
        output = catalyst.output(node)
        (hidden,) = [each for each in output if each.name() == self.hidden]
        ids = catalyst.column(hidden)
        if self.is_text:
            ids = ids_of_text(ids)
        if occurrence:
            offset = F.lit(occurrence << record_ids.ROW_BITS).cast("bigint")
            ids = F.transform(ids, lambda value: value + offset)
        plan, own = catalyst.projected(node, output, [ids])
        return plan, Anchors((AnchorPart(False, tuple(own)),))


def text_of_ids(ids: Column) -> Column:
    """Encode a list of ids as a text without commas, quotes or spaces, such as r12x345."""
    return F.concat(F.lit("r"), F.array_join(ids.cast("array<string>"), "x"))


def ids_of_text(text: Column) -> Column:
    """Decode a text from ``text_of_ids`` to an array of ids (bigint)."""
    parts = F.filter(F.split(F.substring(text, 2, 2**31 - 1), "x"), lambda part: part != "")
    return parts.cast("array<bigint>")


def ids_on_main_routes(ids: Column, routes: Sequence[Route]) -> Column:
    """Filter a list of ids to those that came on a main route, without their occurrence."""
    mains = {record_ids.tag(route.source, route.occurrence) for route in routes}
    if not any(route.occurrence for route in routes):
        return ids
    main = F.filter(ids, lambda each: F.shiftright(each, record_ids.ROW_BITS).isin(mains))
    mask = F.lit(~record_ids.OCCURRENCE_MASK)
    return F.array_distinct(F.transform(main, lambda each: each.bitwiseAND(mask)))


def _copies(attribution: Attribution, node: Node) -> bool:
    children = attribution.catalyst.children(node)
    if not children:
        leaf = attribution.sources.leaf_of(node)
        if isinstance(leaf, OutputLeaf):  # a copy of the job's own output is its end
            return all(output.is_copy for output in leaf.outputs)
        return leaf is not None
    return simple_name(node) in _COPYING and all(_copies(attribution, each) for each in children)
