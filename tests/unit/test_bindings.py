"""Names in code and tests: a noun of the field, never a participle or pronoun that says nothing."""

import ast
from collections.abc import Iterator

import pytest

from tests.support.places import ROOT

EMPTY = {
    "found", "made", "told", "said", "given", "chosen", "known", "kept", "one", "mine",
    "moment", "undone", "untold",
}  # fmt: skip
FOLDERS = (
    "benchmarks",
    "dags",
    "demo",
    "jobs",
    "ledger",
    "migrations",
    "scripts",
    "tests",
)
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def bindings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Each name that a module binds, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                yield name, node.lineno
            case (
                ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.MatchMapping(rest=str(name))
            ):
                yield name, node.lineno
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield name, node.lineno
            case ast.alias(asname=str(name)):
                yield name, node.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_name_says_what_a_thing_is(path):
    """No variable, argument, function, class or attribute is called by one of these words."""
    names = bindings(ast.parse(path.read_text()))
    assert [(name, line) for name, line in names if name.strip("_").lower() in EMPTY] == []


def test_each_way_of_binding_is_seen():
    """An assignment, argument, attribute, loop, pattern or import, and what is defined."""
    source = """
import a as found
from a import b as chosen
async def made(told, *said): pass
def made(given=1): self.kept = 1
class Known: pass
_one: int = 1
for mine in []: pass
try: pass
except Exception as moment: pass
match found:
    case [*told]: pass
    case {**undone}: pass
    case [] as untold: pass
"""
    assert {name.strip("_").lower() for name, _ in bindings(ast.parse(source))} == EMPTY
