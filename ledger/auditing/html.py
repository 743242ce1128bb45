"""The report of an audit as one HTML file, which loads nothing else."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from ledger.auditing.drawing import drawn
from ledger.auditing.losses import ELSEWHERE, EXPECTED, INTENDED, LOST, NOT_NEEDED
from ledger.auditing.remarks import IGNORED, MERGED, SEVERAL_ROWS
from ledger.errors import InputError

MAX_COLUMNS = 12  # of an example
MAX_VALUE = 120  # characters
MAX_OPEN = 8  # losses whose examples are shown at first
_TEMPLATES = files("ledger.auditing") / "templates"
# The sections of losses and remarks: kind, heading, what they are.
_SECTIONS = (
    (LOST, "Lost", "These records reach no output."),
    (ELSEWHERE, "Missing in one output", "These records reach another output, or may do."),
    (SEVERAL_ROWS, "Several rows from one record", "Keys of the other side are doubled."),
    (MERGED, "Merged records", "The row that was kept for the key has other values."),
    (IGNORED, "Ignored values", "An aggregate skipped these records, which have arrived."),
    (EXPECTED, "Expected losses", "The list of expected losses has them."),
    (INTENDED, "Dropped on purpose", "A condition, a limit or a rank leaves these records out."),
    (NOT_NEEDED, "Not needed", "These records need no row of their own."),
)
_NO_LOSS = {"why": "", "note": "", "outputs": (), "has_arrived": False}


def page(data: Mapping[str, Any]) -> str:
    """Return a report's plain data as a page. All texts in it are escaped."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"count": "{:,}".format, "percent": _percent}
    template = environment.from_string((_TEMPLATES / "report.html").read_text(encoding="utf-8"))
    return template.render(
        data=data,
        title=data["title"] or "Audit",
        totals=_totals(data["sources"]),
        sections=list(_sections(data["losses"], data["remarks"])),
        drawing=drawn(data["graph"], data["losses"]),
        cut=_cut,
        max_columns=MAX_COLUMNS,
        max_open=MAX_OPEN,
        css=(_TEMPLATES / "report.css").read_text(encoding="utf-8"),
    )


def save(path: str | Path, data: Mapping[str, Any]) -> None:
    """Write the page of a report to a file. Raises InputError if the file cannot be written."""
    text = page(data).encode("utf-8", errors="backslashreplace")
    try:
        Path(path).write_bytes(text)
    except OSError as error:
        raise InputError(f"{path}: the report cannot be written: {error}") from error


def _totals(sources: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the numbers of all sources together. A number that is not known counts as 0."""
    names = ("records", "arrived", "lost", "expected", "intended")
    return {name: sum(source[name] or 0 for source in sources) for name in names}


def _sections(
    losses: Sequence[Mapping[str, Any]], remarks: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str, str, list[tuple[str, dict[str, Any]]]]]:
    """Yield the kinds of losses and remarks that a report has: kind, heading, text, and the
    entries, each with its name.
    """
    entries = [
        *((f"loss-{at}", dict(loss)) for at, loss in enumerate(losses)),
        *((f"remark-{at}", {**_NO_LOSS, **remark}) for at, remark in enumerate(remarks)),
    ]
    for kind, heading, text in _SECTIONS:
        own = [
            (name, entry)
            for name, entry in entries
            if entry["kind"] == kind and (kind == ELSEWHERE or not entry["has_arrived"])
        ]
        if own:
            yield kind, heading, text, own


def _percent(share: float) -> str:
    if 0 < share < 0.001:
        return "under 0.1 %"
    return f"{share:.1%}".replace("%", " %")


def _cut(value: object) -> str:
    text = str(value)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"
