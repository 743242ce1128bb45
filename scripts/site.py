"""Hooks of mkdocs: what the site has beside ``docs/``, and what it must not load.

Pages link to files outside ``docs/`` as they do in the repository. The pages among them become
pages of the site, a file of code becomes a page that shows it, and each link is turned to its
place.
"""

import posixpath
import re
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
DECISIONS = "decisions/all.md"
COMMANDS = "reference/command-line.md"
LANGUAGES = {".py": "python", ".json": "json", ".sql": "sql", ".txt": "text", ".yml": "yaml"}
_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)")
_LOADED = re.compile(r"<(?:script|img|iframe|link|source)\b[^>]*?\b(?:src|href)=[\"']?([^\"'\s>]+)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add pages from outside ``docs/``, the list of decisions, and linked code."""
    for name in PAGES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    files.append(File.generated(config, DECISIONS, content=decisions(ROOT / "docs" / "decisions")))
    for path in sorted(set(_linked_code(files))):
        files.append(File.generated(config, place(path), content=_shown(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links, leave out comments, which would end a table, and add the commands to theirs."""
    here = page.file.src_uri
    page_text = _LINK.sub(lambda link: turned(link[1], here), markdown)
    page_text = re.sub(r"^<!--.*?-->\n", "\n", page_text, flags=re.MULTILINE)
    return f"{page_text}\n{commands()}" if here == COMMANDS else page_text


def on_post_build(*, config: MkDocsConfig) -> None:
    """Raise PluginError if a page loads anything from another place than the site."""
    for page in sorted(Path(config.site_dir).rglob("*.html")):
        foreign = list(loaded_from_elsewhere(page.read_text()))
        if foreign:
            raise PluginError(f"{page}: expected nothing from elsewhere, found {foreign}")


def loaded_from_elsewhere(html: str) -> Iterator[str]:
    """Addresses of scripts, styles and pictures that are not the site's own."""
    return (address for address in _LOADED.findall(html) if re.match(r"(?:\w+:)?//", address))


def in_repository(page: str) -> str:
    """Return the path of a page of the site in the repository, for example ``docs/sql.md``."""
    return page if page in PAGES else f"docs/{page}"


def place(path: str) -> str:
    """Return the path of a file of the repository in the site's sources.

    Raises PluginError if it is not there.
    """
    if path == "docs/decisions":
        return DECISIONS
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path in PAGES:
        return path
    if path == "README.md":
        return "index.md"
    if Path(path).suffix not in LANGUAGES:
        raise PluginError(f"{path}: expected a page or a file of {', '.join(LANGUAGES)} as target")
    return f"source/{path}.md"


def turned(link: str, page: str) -> str:
    """Return the target of a link on the site, relative to its page."""
    start = posixpath.dirname(page)
    return posixpath.relpath(place(_target(link, page)), start or ".")


def _target(link: str, page: str) -> str:
    """Return the target of a link on a page, from the root of the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(in_repository(page)), link))


def _linked_code(files: Files) -> Iterable[str]:
    for file in files.documentation_pages():
        for link in _LINK.findall(file.content_string):
            target = _target(link, file.src_uri)
            if place(target).startswith("source/"):
                yield target


def _shown(path: str) -> str:
    """A page that shows a file; a missing one is an error of the page that links to it."""
    file = ROOT / path
    if not file.is_file():
        raise PluginError(f"{path}: a page links to it, and it is not there")
    return f"# {path}\n\n````{LANGUAGES[file.suffix]}\n{file.read_text()}\n````\n"


def decisions(folder: Path) -> str:
    """The list of decisions, in their order."""
    lines = ["# Decisions", "", "Each choice that was hard, with what was measured, in order.", ""]
    for path in sorted(folder.glob("*.md")):
        title = re.sub(r"^# \d+[.:] ", "", path.read_text().partition("\n")[0])
        lines.append(f"{int(path.name[:3])}. [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def commands() -> str:
    """All commands, as ``--help`` has them."""
    from typer.main import get_command

    from ledger.cli.base import app, commands_of

    variables_ = sorted(commands_of(get_command(app)))
    return "\n".join(line for words, command in variables_ for line in _command(words, command))


def _command(words: tuple[str, ...], command: Any) -> Iterator[str]:
    """One command: what it does, how it is called, its arguments, its options with their
    variables.
    """
    from ledger.cli.base import variable_of

    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option"]
    call = " ".join(["ackledger", *words, *map(_argument, arguments)])
    yield from (f"## {' '.join(words)}", "", command.help or "", "")
    yield from ("```console", call, *_examples(command.epilog), "```", "")
    if arguments or options:
        yield from ("| option | variable | |", "|---|---|---|")
    yield from (
        f"| `{_argument(param)}` | | {_cell(param.help)} |" for param in arguments if param.help
    )
    for parameter in options:
        variable = variable_of(words, parameter)
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        yield f"| {names} | `{variable}` | {_cell(_meaning(parameter))} |"
    yield ""


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return str(name if parameter.required else f"[{name}]")


def _meaning(parameter: Any) -> str:
    """Describe an option, its values and its default."""
    kind = parameter.type_descriptor.annotation
    sentences = [parameter.help or ""]
    if isinstance(kind, type) and issubclass(kind, Enum):
        sentences.append(f"One of {', '.join(f'`{choice.value}`' for choice in kind)}.")
    if parameter.required:
        sentences.append("Required.")
    if parameter.default not in (None, False):
        sentences.append(f"Default: `{parameter.default}`.")
    return " ".join(sentences)


def _examples(epilog: str | None) -> list[str]:
    lines = (epilog or "").splitlines()
    return [line.strip() for line in lines if line.strip().startswith("ackledger ")]


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")
