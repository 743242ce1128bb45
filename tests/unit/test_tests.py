"""The shape of the tests."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
FILES = sorted(TESTS.rglob("*.py"))


def names(path):
    """The modules of tests that a module imports, or that it names to be imported."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tests":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("tests."))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(TESTS).as_posix())
def test_no_test_imports_a_test(path):
    """What two tests share lies in ``tests/support``, or is a fixture: each can be moved alone."""
    for name in names(path):
        parts = name.split(".")
        taken = [part for part in parts if part.startswith("test_") or part == "conftest"]
        assert not taken, f"{path.name} imports {name}"
