"""The report of an audit as text for a terminal."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ledger.auditing.losses import ELSEWHERE, EXPECTED, INTENDED, LOST, NOT_NEEDED
from ledger.auditing.remarks import IGNORED, MERGED, SEVERAL_ROWS

WIDTH = 120  # columns, if the terminal's are not known
MAX_EXAMPLE = 90  # characters
LEAST_EXAMPLE = 40  # characters that an example needs at the end of a line
MAX_NAME = 30  # characters of a source beside an example
MAX_SOURCES = 12  # with more of them, those whose records all arrived share a line
_INDENT = "    "
_LOST = (LOST, "LOST: these records reach no output")
_OTHERS = (
    (EXPECTED, "EXPECTED: lost, and in the list of expected losses"),
    (INTENDED, "INTENDED: dropped on purpose"),
    (NOT_NEEDED, "NOT NEEDED: records that need no row of their own"),
)
_REMARKS = (
    (SEVERAL_ROWS, "SEVERAL ROWS FROM ONE RECORD: keys of the other side are doubled"),
    (MERGED, "MERGED: the kept row of the key has other values"),
    (IGNORED, "IGNORED: an aggregate skipped these records"),
)
_ELSEWHERE = (ELSEWHERE, "BY OUTPUT: these records reach another output, or may do")

Row = tuple[str, str, str, str, str]


def lines(data: Mapping[str, Any], width: int = WIDTH) -> list[str]:
    """Return a report's plain data as lines of a width, what is lost first."""
    if not data["sources"] and not data["outputs"]:
        text = ["the script wrote no output"]
    else:
        text = _sources(data["sources"], width)
    text += _losses(data, (_LOST,), width)
    text += _unplaced(data["sources"], width)
    text += _not_followed(data["outputs"], width)
    text += _losses(data, (_ELSEWHERE,), width)
    for kind, title in _REMARKS:
        rows = [_row(remark) for remark in data["remarks"] if remark["kind"] == kind]
        if rows:
            text += ["", title, *_table(rows, width)]
    text += _losses(data, _OTHERS, width)
    if data["not_found"]:
        text += ["", "EXPECTED, BUT NOT FOUND: entries that no loss has"]
        for entry in data["not_found"]:
            place = f"{entry['operation']} in {entry['file']}, {entry['source']}"
            text += _wrapped(f"{place}: {entry['reason']}", width)
    if data["notes"]:
        text += ["", "NOTES", *(line for note in data["notes"] for line in _wrapped(note, width))]
    if data["failure"]:
        sentence = f"{data['title']} {data['failure']}: what comes after it is not in this report"
        text += ["", *textwrap.wrap(sentence, width)]
    return text


def _sources(sources: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """Return the lines of the table of sources. A note that does not fit gets lines of its own.
    With more than ``MAX_SOURCES`` sources, those without a note whose records all arrived are
    counted in one last line.
    """
    counted = ["arrived", "lost", "intended"]
    if any(source["expected"] for source in sources):
        counted.insert(2, "expected")
    rows, notes = [["source", "in", *counted]], [""]
    silent = []
    for source in sources:
        is_whole = source["arrived"] == source["records"] and not source["note"]
        if is_whole and len(sources) > MAX_SOURCES:
            silent.append(source)
            continue
        counts = ["?" if source[name] is None else f"{source[name]:,}" for name in counted]
        rows.append([source["name"], f"{source['records']:,}", *counts])
        notes.append(source["unknown"] or source["note"])
    room = width - sum(max(len(row[at]) for row in rows) + 2 for at in range(1, len(rows[0])))
    for row in rows:
        row[0] = _shortened(row[0], max(room, 20))
    table = _aligned(rows, right=set(range(1, len(rows[0]))))
    text = []
    for line, note in zip(table, notes, strict=True):
        if note and len(line) + 2 + len(note) > width:
            text += [line, *_wrapped(note, width)]
        else:
            text.append(f"{line}  {note}".rstrip())
    if silent:
        records = sum(source["records"] for source in silent)
        text.append(f"and {len(silent)} sources whose {records:,} records all arrived")
    return text


def _losses(
    data: Mapping[str, Any], sections: Sequence[tuple[str, str]], width: int
) -> Iterator[str]:
    for kind, title in sections:
        losses = [
            loss
            for loss in data["losses"]
            if loss["kind"] == kind and loss["has_arrived"] == (kind == ELSEWHERE)
        ]
        if losses:
            yield from ("", title, *_table([_row(loss) for loss in losses], width))


def _row(loss: Mapping[str, Any]) -> Row:
    text = f"{loss['text']} [{loss['why']}]" if loss.get("why") else loss["text"]
    name = _shortened(loss["source"], MAX_NAME)
    example = f"{name}: {example_text(loss)}" if loss["examples"] else name
    return loss["operation"], loss["place"], text, f"{loss['records']:,}", example


def example_text(loss: Mapping[str, Any]) -> str:
    """Return the first example of a loss as text, cut to ``MAX_EXAMPLE`` characters."""
    values = loss["examples"][0].items()
    text = ", ".join(f"{name}={'NULL' if value is None else value}" for name, value in values)
    return _cut(" ".join(text.split()), MAX_EXAMPLE)


def _table(rows: Sequence[Row], width: int) -> list[str]:
    """Return rows as lines in columns. The example of a row is at its end, below it or in lines of
    its own, as the width allows.
    """
    short = _aligned([row[:4] for row in rows], right={3})
    taken = max(map(len, short))
    pairs = list(zip(short, rows, strict=True))
    if taken + 2 + min(LEAST_EXAMPLE, max(len(row[4]) for row in rows)) <= width:
        return [f"{line}  {_cut(row[4], width - taken - 2)}" for line, row in pairs]
    if taken <= width:
        return [text for line, row in pairs for text in (line, _example(row, width))]
    text = []
    for operation, place, reason, count, example in rows:
        text += [f"{count}  {operation}  {place}", *_wrapped(reason, width)]
        text.append(_cut(f"{_INDENT}{example}", width))
    return text


def _example(row: Row, width: int) -> str:
    return _cut(f"{_INDENT}{row[4]}", width)


def _unplaced(sources: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    text = []
    for source in sources:
        if source["unplaced"]:
            message = (
                f"{source['unplaced']:,} lost records of {source['name']} arrived when the result "
                "was computed again: it depends on random values, or on a limit without an order"
            )
            text += ["", *textwrap.wrap(message, width)]
    return text


def _not_followed(outputs: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    text = []
    for output in outputs:
        if not output["is_followed"]:
            text += [f"{output['name']}  {output['place']}", *_wrapped(output["why"], width)]
    return ["", "NOT FOLLOWED: outputs whose records are not known", *text] if text else []


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap a text into indented lines."""
    return textwrap.wrap(
        text, width, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _shortened(name: str, most: int) -> str:
    """Cut the beginning of a long name, because the end of a path says more."""
    return name if len(name) <= most else f"...{name[len(name) - most + 3 :]}"


def _aligned(rows: Sequence[Sequence[str]], right: set[int]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
