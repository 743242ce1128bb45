"""Print how large and how fragmented the library's code is: ``make figures``.

A folder as argument is another checkout, so that figures of two commits can be compared.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

# Words with which a docstring's first sentence is a clause that names nothing.
CLAUSES = ("As", "How", "Of", "What", "Where", "Which", "With")
# SQL that compares a column with a text of several words, or looks for a pattern in one.
_SENTENCE = re.compile(
    r"(=|<>|!=|\bIN\s*\(|\bI?LIKE\b|\bSIMILAR\s+TO\b|!?~\*?)\s*'(?=[^']*[A-Za-z][^']*\s[^']*[a-z])[^']*'",
    re.IGNORECASE,
)
_SQL = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|CASE|WHERE|EXISTS)\b")


@dataclass(frozen=True)
class Module:
    """A file of the library with its syntax tree."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Return its functions and methods, nested ones too."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return [node for node in ast.walk(self.tree) if isinstance(node, kinds)]


def modules(root: Path, *folders: str) -> list[Module]:
    """Return the Python files of folders in a checkout; by default, of the library."""
    paths = sorted(path for name in folders or ["ledger"] for path in (root / name).rglob("*.py"))
    return [Module(path, text := path.read_text(), ast.parse(text)) for path in paths]


def used_once(module: Module) -> list[str]:
    """Return the private functions of a file to which it refers at one place only."""
    used: Counter[str] = Counter()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name):
            used[node.id] += 1
        elif isinstance(node, ast.Attribute):
            used[node.attr] += 1
    return [name for name in _private(module) if used[name] == 1]


def _private(module: Module) -> list[str]:
    names = [function.name for function in module.functions]
    return [name for name in names if name.startswith("_") and not name.startswith("__")]


def docstrings(library: list[Module]) -> Iterator[tuple[Path, str]]:
    """Yield each docstring with its file."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for module in library:
        for node in ast.walk(module.tree):
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                yield module.path, text


def begins_with_a_clause(docstring: str) -> bool:
    """Return whether the first word of a docstring begins a clause."""
    return docstring.split(maxsplit=1)[0] in CLAUSES


def sentences_compared(root: Path) -> list[tuple[Path, str]]:
    """Return the comparisons of SQL in a checkout with a text of several words."""
    texts = [(path, path.read_text()) for path in sorted((root / "migrations").rglob("*.sql"))]
    for module in modules(root):
        for node in ast.walk(module.tree):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and _SQL.search(node.value):
                texts.append((module.path, node.value))
    return [(path, match[0]) for path, text in texts for match in _SENTENCE.finditer(text)]


def figures(root: Path) -> dict[str, str]:
    """Return each figure of a checkout by its name."""
    library = modules(root)
    lines = sum(len(module.text.splitlines()) for module in library)
    functions = sum(len(module.functions) for module in library)
    once = sum(len(used_once(module)) for module in library)
    written = [text for _, text in docstrings(library)]
    clauses = sum(map(begins_with_a_clause, written))
    pairs = sum(module.text.count("Contradiction(\n") for module in library)
    options = {
        f"options of Pipeline{'' if name == '__init__' else f'.{name}'}": str(count)
        for name, count in _options(library).items()
    }
    return {
        "lines": f"{lines:,}",
        "files": str(len(library)),
        "functions": f"{functions:,}",
        "functions per 100 lines": f"{100 * functions / lines:.1f}",
        "private functions used at one place": f"{once:,} ({_share(once, functions)} of all)",
        "docstrings that begin with a clause": f"{clauses:,} ({_share(clauses, len(written))})",
        **options,
        "declared contradictions": str(pairs),
        "SQL that compares a sentence": str(len(sentences_compared(root))),
    }


def _options(library: list[Module]) -> dict[str, int]:
    """Count the parameters of what a pipeline is declared with, without self and the name."""
    counts = {}
    for module in library:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and node.name == "Pipeline":
                for each in node.body:
                    if isinstance(each, ast.FunctionDef) and each.name in (
                        *("__init__", "source", "stage", "sink", "combine"),
                    ):
                        parameters = [*each.args.args, *each.args.kwonlyargs]
                        counts[each.name] = len(parameters) - 2
    return counts


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}"


def main() -> None:
    """Print the figures of each checkout beside each other; by default, of this one."""
    roots = [Path(argument) for argument in sys.argv[1:]] or [Path(__file__).parent.parent]
    columns = [figures(root) for root in roots]
    table = Table("figure", *(str(root) if sys.argv[1:] else "now" for root in roots))
    for name in columns[0]:
        table.add_row(name, *(column.get(name, "-") for column in columns))
    Console().print(table)


if __name__ == "__main__":
    main()
