"""What the documentation shows works: its queries, its links, its list of views."""

import ast
import json
import re
from dataclasses import fields

import pytest

from ledger.sinks.base import Publisher, Sink, SinkPlan
from ledger.store import asking
from tests.support.examples import EXAMPLES
from tests.support.pages import PAGES, blocks
from tests.support.places import ROOT

TOP = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]
LINKED = sorted({*TOP, *(ROOT / "docs").rglob("*.md")})


def named(page):
    """A page as the tests of it are called."""
    return str(page.relative_to(ROOT))


def views(ledger):
    """Every view, and the table that users query beside them, with its comment, and its columns
    with theirs, as the ledger has them."""
    rows = ledger.rows(
        "SELECT c.relname, obj_description(c.oid) AS comment, a.attname, col_description(c.oid,"
        " a.attnum) AS meaning FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND"
        " a.attnum > 0 WHERE c.relnamespace = 'ackledger'::regnamespace AND"
        " (c.relkind = 'v' OR c.relname = 'failed_payload')",
    )
    return {
        row.relname: (
            row.comment,
            {r.attname: r.meaning for r in rows if r.relname == row.relname},
        )
        for row in rows
    }


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_queries_run(database, page):
    """Every query on the page is answered by the migrated ledger, as ``ackledger sql`` asks it."""
    for block in blocks(page, "sql"):
        asking.answer(database, block.code)


def test_there_are_queries_to_run():
    """The pages with queries are among those that are checked."""
    assert len(blocks(ROOT / "docs" / "sql.md", "sql")) >= 8


def test_every_view_and_column_is_documented(ledger):
    """docs/sql.md describes each column of each view in the words of the schema."""
    page = (ROOT / "docs" / "sql.md").read_text()
    documented = views(ledger)
    assert len(documented) >= 8
    for name, (comment, columns) in documented.items():
        section = page.partition(f"### `{name}`\n")[2].partition("\n#")[0]
        assert comment in section, name
        for column, meaning in columns.items():
            assert f"| `{column}` | {meaning} |" in section, (name, column)


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")


@pytest.mark.parametrize("page", LINKED, ids=named)
def test_links_lead_somewhere(page):
    """Every relative link has a target, and every anchor is a heading of it."""
    for link in re.findall(r"\]\((?!http)([^)]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in set(anchors(target)), link


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_named_tests_are_there(page):
    """Every file of tests that a page names as proof exists."""
    for name in re.findall(
        r"\b(?:unit|integration|acceptance|crashes)/test_\w+\.py", page.read_text()
    ):
        assert (ROOT / "tests" / name).exists(), name


def defined(path):
    """Names that a module defines: constants, functions, classes, and methods as
    ``Class.method``.
    """
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            inner = (element.name for element in node.body if isinstance(element, ast.FunctionDef))
            yield from (f"{node.name}.{name}" for name in inner)


def test_architecture_names_what_exists():
    """Every file, folder and function that ARCHITECTURE.md names is in the package."""
    page = (ROOT / "ARCHITECTURE.md").read_text()
    named = re.findall(r"`([\w/]+(?:\.py|/))(?:: ([\w., ]+))?`", page)
    assert len(named) > 50
    for path, names in named:
        place = ROOT / "ledger" / path
        assert place.exists() or (ROOT / path).exists(), path
        unknown = set(names.split(", ") if names else []) - set(defined(place) if names else [])
        assert not unknown, (path, unknown)


def test_the_example_of_a_sink_is_the_one_that_is_tested():
    """Code on the page about sinks stands in the sink that passes the contract, word for word."""
    section = (
        (ROOT / "docs" / "extending.md").read_text().partition("## A sink kind of your own")[2]
    )
    section = section.partition("\n## ")[0]
    tested = (ROOT / "tests" / "support" / "sqlite_sink.py").read_text()
    examples = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    shown = [example for example in examples if "in your pipeline" not in example]
    assert len(shown) == 3
    for code in shown:
        assert code in tested
    described = set(re.findall(r"^\| `(\w+)", section, re.MULTILINE)) - {"member"}
    members = {name for kind in (Sink, Publisher) for name in vars(kind)}
    members |= {field.name for field in fields(SinkPlan)}
    assert described == {name for name in members if not name.startswith("_")}


def test_no_block_goes_unnoticed():
    """Pages have blocks of the languages that tests run; a block without one has no command."""
    names = {"python", "sql", "console", "yaml", "json", ""}
    for block in (block for page in PAGES for block in blocks(page)):
        assert block.language in names, (block.place, block.language)
        if block.language == "json":
            json.loads(block.code)
        typed = ("ackledger ", "make ", "airflow ", "pip ", "$ ")
        if not block.language and not block.code.startswith("ackledger: "):
            hidden = [line for line in block.code.splitlines() if line.startswith(typed)]
            assert not hidden, (block.place, hidden)


def test_names_are_unique():
    """A block is found by its page and the last name that it defines; those of the tutorial, and
    of other tools, are run in their order.
    """
    every = [block for page in PAGES for block in blocks(page, "python")]
    own = [
        block
        for block in every
        if block.page.name == "tutorial.md" or block not in EXAMPLES.values()
    ]
    assert {block.page.name for block in own} == {"tutorial.md", "comparison.md"}
    assert len(EXAMPLES) == len(every) - len(own)
