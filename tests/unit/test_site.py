"""The documentation as a site: what the hooks of mkdocs make of the repository's pages."""

import re

import pytest
import yaml
from markdown import markdown
from mkdocs.exceptions import PluginError
from typer.main import get_command

import ledger.airflow
from ledger import errors
from ledger.cli import app
from ledger.errors import LedgerError
from scripts import site
from tests.support.browser import checksum, picture
from tests.support.places import ROOT


@pytest.mark.parametrize(
    ("html", "addresses"),
    [
        ('<script src="https://cdn.example/m.js"></script>', ["https://cdn.example/m.js"]),
        ("<link rel=stylesheet href=//fonts.example/f.css>", ["//fonts.example/f.css"]),
        ('<img alt="a" src="http://elsewhere.example/a.png">', ["http://elsewhere.example/a.png"]),
        ('<script src="../js/own.js"></script><img src="a.svg">', []),
        ('<a href="https://semver.org">a link is no load</a>', []),
    ],
)
def test_what_is_loaded_from_elsewhere_is_found(html, addresses):
    """Scripts, styles and pictures of other places are; links that a reader may follow are not."""
    assert list(site.loaded_from_elsewhere(html)) == addresses


@pytest.mark.parametrize(
    ("link", "page", "turned"),
    [
        ("sql.md", "concepts.md", "sql.md"),
        ("../sql.md", "how-to/ask.md", "../sql.md"),
        ("docs/sql.md", "ARCHITECTURE.md", "sql.md"),
        ("../ARCHITECTURE.md", "concepts.md", "ARCHITECTURE.md"),
        ("../../CHANGELOG.md", "reference/index.md", "../CHANGELOG.md"),
        ("docs/decisions", "ARCHITECTURE.md", "decisions/all.md"),
        ("../README.md", "concepts.md", "index.md"),
        ("../benchmarks/results.json", "cost.md", "source/benchmarks/results.json.md"),
        ("images/xor-acked.svg", "acking.md", "images/xor-acked.svg"),
    ],
)
def test_a_link_of_the_repository_leads_to_its_place_on_the_site(link, page, turned):
    """Whether it stays in docs/, leaves it, or comes from outside."""
    assert site.turned(link, page) == turned


def test_a_link_to_what_the_site_cannot_show_is_refused():
    """The message names the target, and what may be one."""
    with pytest.raises(PluginError, match="expected a page or a file of"):
        site.turned("../demo/data.bin", "cost.md")


def test_every_command_is_on_its_page():
    """With each option and the variable that stands for it."""
    page = site.commands()
    assert "## db upgrade" in page
    for name, command in get_command(app).commands.items():
        if not hasattr(command, "commands"):
            section = page.partition(f"## {name}\n")[2].partition("\n## ")[0]
            for option in (param for param in command.params if param.param_type_name == "option"):
                assert f"`{option.opts[0]}`" in section, (name, option.name)
    assert "| `--limit` | `ACKLEDGER_STATUS_LIMIT` | Batches listed at most. Default" in page


def test_an_option_says_what_may_be_given():
    """Whether it has to be given, which values there are, and which counts if none is."""
    page = site.commands()
    run, backfill = (page.partition(f"## {name}\n")[2] for name in ("run", "backfill"))
    start = run.partition("| `--from` |")[2].partition("\n")[0]
    assert start.endswith("UTC by default. Required. |")
    every = backfill.partition("| `--every` |")[2].partition("\n")[0]
    assert "`hour`, `day`, `week`, `month`" in every
    assert every.endswith("Default: `day`. |")
    assert "| `[RECORD]` | | Its number, as 'failed --records' shows it. |" in page
    assert "|  |" not in page  # nothing goes without saying


def test_the_reference_has_what_users_import():
    """Every public name of the package and of its part for Airflow, and every error."""
    pages = (ROOT / "docs" / "reference").glob("*.md")
    listed = set(re.findall(r"\bledger\.[\w.]+", "\n".join(page.read_text() for page in pages)))
    public = [f"ledger.{name}" for name in ledger.__all__ if name != "LedgerError"]
    public += [f"ledger.airflow.{name}" for name in ledger.airflow.__all__]
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    public += [f"ledger.errors.{kind.__name__}" for kind in kinds if issubclass(kind, LedgerError)]
    assert not set(public) - listed


def test_every_decision_is_listed():
    """In order, under its number."""
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"^(\d+)\. \[.+\]\((.+)\)$", site.decisions(folder), re.MULTILINE)
    assert [name for _, name in listed] == sorted(path.name for path in folder.glob("*.md"))
    assert all(int(number) == int(name[:3]) for number, name in listed)


def test_pictures_are_legible_to_all():
    """Each has a title, a description, and colours for light and dark."""
    pictures = list((ROOT / "docs" / "images").glob("*.svg"))
    assert len(pictures) >= 3
    for path in pictures:
        text = path.read_text()
        assert "<title" in text, path
        assert "<desc" in text, path
        assert "prefers-color-scheme: dark" in text, path


def configured():
    """The configuration of mkdocs."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    return yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)


def test_blocks_have_the_classes_of_the_style():
    """Commands without a prompt are not grey as output is, and are copied without prompts."""
    options = [
        extension
        for extension in configured()["markdown_extensions"]
        if isinstance(extension, dict)
    ]
    highlight = next(
        option["pymdownx.highlight"] for option in options if "pymdownx.highlight" in option
    )
    html = markdown(
        "```console\n$ ls\nout\n```",
        extensions=["pymdownx.highlight", "pymdownx.superfences"],
        extension_configs={"pymdownx.highlight": highlight},
    )
    style = (ROOT / "docs" / "css" / "site.css").read_text()
    named = set(re.findall(r"\.(language-\w+|g[op])\b", style))
    assert named == {"language-console", "go", "gp"}
    for name in named:
        assert re.search(rf'class="[^"]*\b{name}\b', html), name


def test_the_site_is_strict():
    """A page that no reader finds, a broken link and a broken anchor are warnings, which end
    ``mkdocs build --strict``.
    """
    config = configured()
    assert config["validation"]["nav"]["omitted_files"] == "warn"
    assert config["validation"]["links"] == dict.fromkeys(
        ("not_found", "anchors", "absolute_links", "unrecognized_links"), "warn"
    )
    assert "mkdocs build --quiet --strict" in (ROOT / "Makefile").read_text()
    assert "make docs" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/images/*.png")), ids=lambda path: path.stem)
def test_each_screenshot_was_taken_by_a_test(path):
    """The words that the test of the pages compares are those of the committed picture."""
    image, words = picture(path.stem)
    assert image == path
    assert words.read_text().partition("\n")[0] == checksum(path)
