"""What the statements of jobs and services do, by their text."""

import re
from pathlib import Path

from ledger.store.queries.pipelines import POLICY
from tests.support.places import ROOT

# Modules whose statements a reader's role runs alone.
OF_READERS = ("measures.py", "pages.py")
_END = r'(?:\bWHERE|\bFROM|\bRETURNING|")'


def source(*folders: str) -> str:
    """The text of the modules of these folders that the writer runs, without expressions within
    texts."""
    paths = (path for folder in folders for path in sorted((ROOT / folder).glob("*.py")))
    modules = (path for path in paths if path.name not in OF_READERS)
    return re.sub(r"\{[^{}\n]*\}", "", "\n".join(map(Path.read_text, modules)))


def updated() -> dict[str, set[str]]:
    """The columns that the query modules set, by table."""
    text = source("ledger/store/queries")
    updates = re.findall(rf'UPDATE (\w+)(?: \w+)?\s+SET([^"]*?){_END}', text)
    updates += re.findall(rf'INSERT INTO (\w+)\b[^"]*?DO UPDATE SET([^"]*?){_END}', text)
    columns: dict[str, set[str]] = {}
    for table, assignments in updates:
        columns.setdefault(table, set()).update(re.findall(r"(?<!:)\b(\w+) = ", assignments))
    columns["pipeline"] |= {*POLICY, "target"}  # whose statement is joined from these names
    del columns["settling"]  # a temporary table, the writer's own
    return columns


def read() -> set[str]:
    """What the query modules read, also of what they change, and names of their own for parts of a
    statement."""
    text = source("ledger/store/queries")
    changed = re.findall(
        r'\b(?:INSERT INTO|UPDATE) (\w+)\b[^"]*?\b(?:WHERE|RETURNING|CONFLICT)\b', text
    )
    return {*re.findall(r"\b(?:FROM|JOIN|USING) (\w+)\b", text), *changed}


def inserted() -> set[str]:
    """The tables that jobs and services insert into, by INSERT or COPY."""
    text = source("ledger/store/queries", "ledger/deltas")
    return set(re.findall(r"\b(?:INSERT INTO|COPY) (\w+)\b", text))
