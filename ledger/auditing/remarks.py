"""Remarks about records that arrived: with several rows, in another record's row, or ignored."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger.auditing import ids as record_ids
from ledger.auditing.attribution import Attribution
from ledger.auditing.fan_outs import fan_outs, may_multiply
from ledger.auditing.ids import Ids
from ledger.auditing.ignored import ignored
from ledger.auditing.merges import may_merge, merges
from ledger.auditing.sources import AuditSource
from ledger.lineage.catalyst import Node
from ledger.lineage.nodes import simple_name

REMARKS = SEVERAL_ROWS, MERGED, IGNORED = "several rows", "merged", "ignored"
_AT = "__ackledger_at"
_Rule = Callable[[Attribution, Node], Iterator[tuple[str, str, Ids]]]
_RULES: dict[str, tuple[str, _Rule]] = {
    "Join": (SEVERAL_ROWS, fan_outs),
    "Deduplicate": (MERGED, merges),
    "Aggregate": (IGNORED, ignored),
}
# Frames that have rows if the rule has records to name.
_CHECKS = {"Join": may_multiply, "Deduplicate": may_merge}


@dataclass(frozen=True)
class Remark:
    """Records of one source that arrived, but not as their job may intend.

    Attributes:
        kind: "several rows": a join made several rows of each; "merged": the row of another record
            with the same key and other values was kept; "ignored": an aggregate skipped them.
        operation: the join, ``dropDuplicates`` or the aggregate.
        text: the keys, the columns with other values, or the value that is NULL.
        ids: the ids of the records.
        at: the identities of the plans' nodes.
    """

    kind: str
    source: AuditSource
    operation: str
    place: str
    text: str
    ids: Ids
    at: tuple[int, ...] = ()

    @property
    def records(self) -> int:
        """The number of records."""
        return len(self.ids)


def remarks(attributions: Iterable[Attribution]) -> list[Remark]:
    """Return the remarks on each operation of some outputs, those with most records first."""
    seen: set[int] = set()
    by_text: dict[tuple[str, int, str, str, str], Remark] = {}
    for attribution in attributions:
        # A part of a plan may be in it twice, and in those of several outputs.
        identity = attribution.catalyst.identity
        nodes = {identity(node): node for node in attribution.nodes(attribution.plan)}
        new = [node for key, node in nodes.items() if key not in seen]
        seen |= set(nodes)
        with attribution.as_written():
            for node in _suspects(attribution, new):
                kind, rule = _RULES[simple_name(node)]
                for operation, text, values in rule(attribution, node):
                    for number, own in record_ids.by_source(values):
                        source, place = attribution.sources.sources[number], attribution.place(node)
                        at: tuple[int, ...] = (identity(node),)
                        key = kind, number, operation, place, text
                        if key in by_text:  # A source may be on both sides of a join.
                            own = record_ids.union([own, by_text[key].ids])
                            at = (*by_text[key].at, *at)
                        by_text[key] = Remark(kind, source, operation, place, text, own, at)
    return sorted(by_text.values(), key=lambda remark: -remark.records)


def _suspects(attribution: Attribution, nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes that may have records to remark on. One Spark job checks all joins and
    duplicates.
    """
    checks: dict[int, DataFrame] = {}
    for at, node in enumerate(nodes):
        check = _CHECKS.get(simple_name(node))
        rows = None if check is None else check(attribution, node)
        if rows is not None:
            checks[at] = rows.limit(1).select(F.lit(at).alias(_AT))
    hits = reduce(DataFrame.union, checks.values()).collect() if checks else []
    positive = {int(row[0]) for row in hits}
    return [
        node for at, node in enumerate(nodes) if at in positive or simple_name(node) == "Aggregate"
    ]
