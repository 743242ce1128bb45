"""What the documentation shows works: its queries, its declarations, its list of views."""

import ast
import re

import pytest

from ledger import Pipeline
from ledger.sinks.base import Publisher, Sink
from ledger.store.queries import asking
from tests.support.ledgers import rows
from tests.support.places import ROOT

TOP = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKED = sorted({*TOP, *(ROOT / "docs").rglob("*.md")})


def blocks(page, language):
    """Fenced blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def views(database):
    """Every view with its comment, and its columns with theirs, as the ledger has them."""
    found = rows(
        database,
        "SELECT c.relname, obj_description(c.oid) AS comment, a.attname, col_description(c.oid,"
        " a.attnum) AS meaning FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND"
        " a.attnum > 0 JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'public' AND"
        " c.relkind = 'v'",
    )
    return {
        row.relname: (
            row.comment,
            {r.attname: r.meaning for r in found if r.relname == row.relname},
        )
        for row in found
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_queries_run(database, page):
    """Every query on the page is answered by the migrated ledger, as ``ackledger sql`` asks it."""
    for query in blocks(page, "sql"):
        asking.answer(database, query)


def test_there_are_queries_to_run():
    """The pages with queries are among those that are checked."""
    assert len(blocks(ROOT / "README.md", "sql")) >= 3
    assert len(blocks(ROOT / "docs" / "sql.md", "sql")) >= 5


def test_every_view_and_column_is_documented(database):
    """docs/sql.md describes each column of each view in the words of the schema."""
    page = (ROOT / "docs" / "sql.md").read_text()
    found = views(database)
    assert len(found) >= 8
    for name, (comment, columns) in found.items():
        section = page.partition(f"### `{name}`\n")[2].partition("\n#")[0]
        assert comment in section, name
        for column, meaning in columns.items():
            assert f"| `{column}` | {meaning} |" in section, (name, column)


@pytest.mark.parametrize("page", ["README.md", "docs/pipelines.md"])
def test_shown_pipeline_can_be_declared(page):
    """The first pipeline on the page is a valid one: its steps are listed only if it is."""
    namespace = {"__name__": "orders"}
    exec(blocks(ROOT / page, "python")[0], namespace)
    made = namespace["pipeline"]
    assert isinstance(made, Pipeline)
    assert [step.name for step in made.steps()] == ["orders", "with_country", "by_country"]


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    """Every relative link has a target, and every anchor is a heading of it."""
    for link in re.findall(r"\]\((?!http)([^)]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in set(anchors(target)), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
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
            yield from (one.id for one in targets if isinstance(one, ast.Name))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            inner = (one.name for one in node.body if isinstance(one, ast.FunctionDef))
            yield from (f"{node.name}.{name}" for name in inner)


def test_architecture_names_what_exists():
    """Every file, folder and function that ARCHITECTURE.md names is in the package."""
    page = (ROOT / "ARCHITECTURE.md").read_text()
    named = re.findall(r"`([\w/]+(?:\.py|/))(?:: ([\w., ]+))?`", page)
    assert len(named) > 50
    for path, names in named:
        found = ROOT / "ledger" / path
        assert found.exists() or (ROOT / path).exists(), path
        unknown = set(names.split(", ") if names else []) - set(defined(found) if names else [])
        assert not unknown, (path, unknown)


def test_the_example_of_a_sink_is_the_one_that_is_tested():
    """Code on the page about sinks stands in the sink that passes the contract, word for word."""
    section = (ROOT / "docs" / "extending.md").read_text().partition("## A sink of your own")[2]
    section = section.partition("\n## ")[0]
    tested = (ROOT / "tests" / "support" / "sqlite_sink.py").read_text()
    examples = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    shown = [one for one in examples if "in your pipeline" not in one]
    assert len(shown) == 2
    for code in shown:
        assert code in tested
    described = set(re.findall(r"^\| `(\w+)", section, re.MULTILINE)) - {"member"}
    members = {name for kind in (Sink, Publisher) for name in vars(kind)}
    assert described == {name for name in members if not name.startswith("_")}
