"""Kinds of sources are distinguished in their own folders alone."""

import ast

import pytest

from tests.support.places import ROOT

FILES = sorted(
    path
    for path in (ROOT / "ledger").rglob("*.py")
    if (ROOT / "ledger" / "sources") not in path.parents
)
KINDS = {"FileSource", "SqlSource", "OffsetSource", "Files", "Table", "Offsets"}
KINDS |= {"Reader", "TableReader", "OffsetReader"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_asks_for_the_kind_of_a_source(path):
    """Outside ``ledger/sources`` nothing depends on which kind a source is."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            named = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
            assert not named & KINDS, f"{path.name}:{node.lineno}: {ast.unparse(node)}"
