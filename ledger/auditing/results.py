"""Judge the records of all sources by the outputs that they have reached."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ledger.auditing import ids as record_ids
from ledger.auditing.attribution import EXECUTION_ERRORS, Attribution, Lost, Presence, condition_of
from ledger.auditing.graph import graph_of
from ledger.auditing.ids import Ids
from ledger.auditing.losses import Loss, OutputResult, SourceResult
from ledger.auditing.operations import operation
from ledger.auditing.outputs import AuditOutput
from ledger.auditing.reasons import Reason, Reasons
from ledger.auditing.remarks import Remark, remarks
from ledger.auditing.report import AuditReport
from ledger.auditing.routes import missing_on
from ledger.auditing.sources import AuditSource, Sources

CONSULTED = "only consulted: no row of its own is expected"
OPTIONAL = "optional side of an outer join"


def judged(
    sources: Sources,
    outputs: Sequence[AuditOutput],
    final: Sequence[str] = (),
    on_output: Callable[[str], None] = lambda name: None,
    title: str = "",
    doubts: Mapping[int, str] = MappingProxyType({}),
) -> AuditReport:
    """Return the report on all sources.

    ``final``: the names of the outputs that a record must reach. Empty: all outputs that no other
    output reads.
    ``on_output``: called before the losses of each output are looked for.
    ``doubts``: by source, why it is unknown which of its records have arrived.
    """
    ends = _final(outputs, final)
    lost: dict[int, Ids] = {}
    notes: dict[int, str] = {}
    for source in sources.sources:
        own = _ends_of(source, ends)
        arrived = record_ids.union(output.arrived for output in own)
        lost[source.number] = record_ids.difference(source.all_ids, arrived)
        of_each = [_note(source, output) for output in own]
        notes[source.number] = of_each[0] if of_each and all(of_each) else ""
    unknown = {
        source.number: doubts.get(source.number) or _unknown(source, ends)
        for source in sources.sources
    }
    losses: list[Loss] = []
    answers = _Answers()
    read = _read_again(outputs)
    for output in outputs:
        if output.attribution is not None:
            on_output(output.name)
            with output.attribution.as_written():
                losses += _losses(sources, output, lost, unknown, answers)
            if id(output) not in read:  # its records are lost where they were read
                losses += _replaced(sources, output, lost)
    attributions = [each.attribution for each in outputs if each.attribution is not None]
    noted = _remarks(attributions)
    graph = graph_of(sources, outputs, losses, noted)
    losses = _merged(losses)
    results = [
        SourceResult.of(
            source,
            lost[source.number],
            losses,
            notes[source.number],
            unknown[source.number],
        )
        for source in sources.sources
    ]
    listed = [
        OutputResult(each.name, each.place, each.why, is_final=each in ends) for each in outputs
    ]
    failed = list(dict.fromkeys(note for each in attributions for note in each.notes))
    return AuditReport(results, losses, sources, listed, noted, title, graph, notes=failed)


def _final(outputs: Sequence[AuditOutput], names: Sequence[str]) -> list[AuditOutput]:
    there = [output for output in outputs if not output.replaced_at]
    if names:
        return [output for output in there if output.name in names]
    read = _read_again(outputs)
    return [output for output in there if id(output) not in read]


def _read_again(outputs: Sequence[AuditOutput]) -> set[int]:
    """Return the ``id()`` of each output that another output reads."""
    return {id(each) for output in outputs for each in output.reads}


def _ends_of(source: AuditSource, ends: Sequence[AuditOutput]) -> list[AuditOutput]:
    """Return the final outputs that have a source in their plan. Plain copies count only if there
    is no other output.
    """
    own = [each for each in ends if each.attribution is not None and source.number in each.sources]
    return [output for output in own if not output.is_copy] or own


def _note(source: AuditSource, output: AuditOutput) -> str:
    """Return why a record of a source needs no row of its own in an output; empty if it needs
    one.
    """
    own = [route for route in output.routes if route.source == source.number]
    if not own:
        return CONSULTED
    return OPTIONAL if all(route.is_optional for route in own) else ""


def _unknown(source: AuditSource, ends: Sequence[AuditOutput]) -> str:
    """Return why it is unknown which records of a source have arrived; empty if it is known."""
    for output in ends:
        if output.attribution is None and source.number in output.sources:
            return f"not known: {output.name} is not followed"
    if not any(source.number in output.sources for output in ends):
        return "not known: it is in the plan of no output"
    return ""


def _losses(
    sources: Sources,
    output: AuditOutput,
    lost: Mapping[int, Ids],
    unknown: Mapping[int, str],
    answers: "_Answers",
) -> Iterator[Loss]:
    """Yield the losses on the way to one output: of records that reach no final output, and of
    records that reach, or may reach, another output.
    """
    assert output.attribution is not None
    missing = missing_on(output.routes, output.arrived)
    for each in output.attribution.losses(missing, answers.presence):
        for reason in answers.reasons_of(output.attribution, each):
            for number, own in record_ids.by_source(reason.ids):
                source = sources.sources[number]
                note = _note(source, output)
                ids = record_ids.records_of(own)
                loss = Loss(
                    source=source,
                    operation=operation(each.node),
                    place=each.place,
                    reason=reason.text,
                    is_intended=reason.is_intended or bool(note),
                    ids=record_ids.intersection(ids, lost[number]),
                    note=note,
                    is_repeatable=each.is_repeatable,
                    outputs=(output.name,),
                    at=(output.attribution.catalyst.identity(each.node), each.side),
                )
                elsewhere = record_ids.difference(ids, lost[number])
                yield replace(loss, has_arrived=bool(unknown[number]))
                yield replace(loss, ids=elsewhere, has_arrived=True)


def _replaced(sources: Sources, output: AuditOutput, lost: Mapping[int, Ids]) -> Iterator[Loss]:
    """Yield the losses of an output that a later write replaced, or that was dropped."""
    if output.replaced_at:
        for source in sources.sources:
            ids = record_ids.intersection(output.arrived, lost[source.number])
            operation = output.dropped_by or "overwrite"
            reason = f"{output.name} is {'dropped' if output.dropped_by else 'replaced'}"
            place, outputs = output.replaced_at, (output.name,)
            yield Loss(source, operation, place, reason, False, ids, outputs=outputs)


@dataclass
class _Answers:
    """Cache of findings on operations, for outputs that share operations."""

    presence: Presence = field(default_factory=dict)
    reasons: dict[tuple[int, ...], tuple[Ids, list[Reason]]] = field(default_factory=dict)

    def reasons_of(self, attribution: Attribution, lost: Lost) -> list[Reason]:
        """Return the reasons of one operation's losses."""
        key = (lost.side, *attribution.key(lost.node))
        if key not in self.reasons or len(record_ids.difference(lost.ids, self.reasons[key][0])):
            try:
                self.reasons[key] = lost.ids, Reasons(attribution).of(lost)
            except EXECUTION_ERRORS as error:  # on values of rows that a later operation drops
                return [Reason(f"reason not known: {condition_of(error)}", False, lost.ids)]
        own = [
            replace(reason, ids=record_ids.intersection(reason.ids, lost.ids))
            for reason in self.reasons[key][1]
        ]
        return [reason for reason in own if len(reason.ids)]


def _remarks(attributions: Sequence[Attribution]) -> list[Remark]:
    try:
        return remarks(attributions)
    except EXECUTION_ERRORS as error:
        attributions[0].notes.append(
            f"joins, duplicates and aggregates could not be looked at ({condition_of(error)}): "
            "they fail on rows that the job does not compute"
        )
        return []


def _merged(losses: Sequence[Loss]) -> list[Loss]:
    """Return the losses, those with the most records first. Losses that several outputs share are
    merged.
    """
    merged: dict[tuple[object, ...], Loss] = {}
    for loss in losses:
        if not len(loss.ids):
            continue
        other = merged.get(loss.identity)
        if other is not None:
            outputs = tuple(dict.fromkeys((*other.outputs, *loss.outputs)))
            loss = replace(loss, ids=record_ids.union([other.ids, loss.ids]), outputs=outputs)
        merged[loss.identity] = loss
    return sorted(merged.values(), key=lambda loss: -loss.records)
