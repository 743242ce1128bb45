"""The pages of the documentation, and the blocks of code on them."""

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.places import ROOT

DOCS = ROOT / "docs"
# Pages for readers; a decision is a record of its day.
PAGES = [
    ROOT / "README.md",
    *sorted(path for path in DOCS.rglob("*.md") if path.parent.name != "decisions"),
]
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced block: ``heading`` is the last one above it, ``language`` and ``title`` are as its
    first line has them, or ''.
    """

    page: Path
    heading: str
    language: str
    title: str
    code: str

    @property
    def name(self) -> str:
        """What it is called among the blocks of its page: the last name that it defines, or its
        first line.
        """
        names = [*_defined(self.code)] if self.language == "python" else []
        return names[-1] if names else self.code.partition("\n")[0].strip()

    @property
    def place(self) -> str:
        """Its page, from the root of the repository."""
        return str(self.page.relative_to(ROOT))


def _defined(code: str) -> Iterator[str]:
    for node in ast.parse(code).body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name


def blocks(page: Path, language: str | None = None) -> list[Block]:
    """Fenced blocks of a page, of one language or of all."""
    text = page.read_text()
    results = []
    for fence in _FENCE.finditer(text):
        above = re.findall(r"^#+ (.+)$", _FENCE.sub("", text[: fence.start()]), re.MULTILINE)
        code = textwrap.dedent(fence["code"])
        results.append(Block(page, above[-1], fence["language"], fence["title"] or "", code))
    return [result for result in results if language in (None, result.language)]


@dataclass(frozen=True)
class Typed:
    """A command of a block, and the lines that the page shows below it."""

    command: str
    output: tuple[str, ...]


def typed(block: Block) -> list[Typed]:
    """The commands of a console block. With prompts, lines without one are output."""
    lines = block.code.splitlines()
    if not any(line.startswith("$ ") for line in lines):
        return [Typed(line, ()) for line in lines if line and not line.startswith("#")]
    results: list[Typed] = []
    for line in lines:
        if line.startswith("$ "):
            results.append(Typed(line.removeprefix("$ "), ()))
        elif line:
            results[-1] = Typed(results[-1].command, (*results[-1].output, line))
    return results


def shows(printed: str, output: tuple[str, ...]) -> bool:
    """Whether what was printed has the lines of the page, one after the other; ``...`` stands for
    any text within a line, a line of it for any lines.
    """
    if not output:
        return True
    lines = [line.rstrip() for line in printed.splitlines() if line.strip()]
    wanted = [_pattern(line) for line in output]
    pattern = "".join("(?:.*\n)*?" if line_ is None else f"{line_}\n" for line_ in wanted)
    return re.search(f"^{pattern}", "\n".join(lines) + "\n", re.MULTILINE) is not None


def _pattern(line: str) -> str | None:
    if line.strip() == "...":
        return None
    return ".*".join(map(re.escape, line.rstrip().split("...")))
