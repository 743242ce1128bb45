"""No decision depends on how a sentence is worded: causes are columns and enums."""

import ast
import importlib
import re

import pytest

from ledger.core.states import FailureCause, HoldCause
from tests.support.places import ROOT

FILES = sorted((ROOT / "ledger").rglob("*.py"))
QUERIES = sorted((ROOT / "ledger" / "store").rglob("*.py"))
BASELINE = sorted((ROOT / "migrations" / "baseline").glob("*.sql"))
SENTENCE = re.compile(r"[A-Za-z]{2,}[^\w\s]{0,2} [A-Za-z]")  # two words
MATCHING = {
    *("startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition"),
    *("split", "find", "index", "count", "match", "search", "fullmatch", "compile", "findall"),
}
# Compared all the same: the words of others, and what is no cause of anything.
ALLOWED = {
    "airflow/spark_tasks.py": {"Error code is: "},  # Airflow's, of spark-submit
    "cli/base.py": {"did you mean"},  # whether a suggestion is added
    "sources/vectorized/json_lines.py": {r" in row (\d+)\Z", "unexpected field"},  # Arrow's
    "spark/failures.py": None,  # Java's, Spark's and Python's
    "spark/frames/anchor_use.py": None,  # of Spark's plans
    "spark/steps/anchor_errors.py": {"GROUP BY"},  # of Spark's plans
    "testing/faults.py": {"files written"},  # a place of ``core.probes``
    "cli/causes.py": {"on hold"},  # a status
    "batch/outcome/report.py": {"on hold"},
    "batch/advice/actions.py": {"In Airflow"},  # whether a command has a line of its own
}
FOREIGN = {"auditing", "lineage"}  # they read Spark's plans and users' scripts
WORDS = r"\b(?:reason|detail|failure|held_reason)\b"
COMPARES = r"(?:=|<>|!=|!?~\*?|\b(?:I?LIKE|SIMILAR TO|DISTINCT FROM|WHEN))"
COMPARED = re.compile(rf"{COMPARES}\s*\(?E?'((?:[^']|'')*)'|'((?:[^']|'')*)'\s*(?:=|<>|!=)", re.I)
LISTED = re.compile(r"\bIN\s*\(((?:\s*'(?:[^']|'')*'\s*,?)+)\)", re.IGNORECASE)
CALLED = re.compile(r"\b(?:strpos|starts_with|regexp_\w+|position|split_part)\s*\([^;]*?'([^']*)'")
STORED = (":reason", ":failure", "'***'")  # a person's filter, what is stored, the mask
OF_WORDS = re.compile(rf"{WORDS}\s*{COMPARES}\s*(:\w+|E?'(?:[^']|'')*')")


def statements():
    """Each SQL text of the ledger, with what it is in; f-strings with the constants they name."""
    for path in BASELINE:
        sql = re.sub(r"--.*", "", path.read_text())
        yield path.name, re.sub(r"COMMENT ON .*?IS\s*(?:'(?:[^']|'')*'\s*)+;", "", sql)
    for path in QUERIES:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        names = vars(importlib.import_module(module.removesuffix(".__init__")))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (
                    part.value
                    if isinstance(part, ast.Constant)
                    else str(names.get(getattr(part.value, "id", ""), "?"))
                    for part in node.values
                )
                yield path.name, "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path.name, node.value


def sentences_in(sql):
    """The sentences that a statement compares something with."""
    sentences = [first or second for first, second in COMPARED.findall(sql)] + CALLED.findall(sql)
    sentences += [text for items in LISTED.findall(sql) for text in re.findall(r"'([^']*)'", items)]
    words = {value for value in OF_WORDS.findall(sql) if value not in STORED}
    return {text for text in sentences if SENTENCE.search(text)} | words


@pytest.mark.parametrize(
    "sql",
    [
        "r.reason = 'did not commit in time'",
        "r.detail ~ '^-?[0-9]+ rows? from .+, -?[0-9]+ acked(; |$)'",
        "status IN ('on', 'put on hold')",
        "CASE x WHEN 'was lost' THEN 1 END",
        "starts_with(x, 'was lost')",
        "'was lost' = x",
        "f.reason = :repeated",
        "f.reason LIKE 'lost'",
        "reader.failure ~ '^(LostFile|Integrity)Error: '",
    ],
)
def test_a_compared_sentence_is_found(sql):
    """Each way of comparing one that the ledger's SQL had is seen."""
    assert sentences_in(sql)


def test_no_statement_compares_a_sentence():
    """Neither a query nor a function or view of the schema: of people's patterns, and the mask of
    a forgotten text, there is no telling beforehand."""
    sentences = {(name, *sentences_in(sql)) for name, sql in statements() if sentences_in(sql)}
    assert not sentences


def constants(path):
    """The sentences that a module has as constants, by name."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str) and SENTENCE.search(text):
                yield from ((ast.unparse(name), text) for name in node.targets)


def known_in(path):
    """The same as a module writes them: its own, and those of the modules that it imports from."""
    names = dict(constants(path))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("ledger"):
            folder = ROOT / node.module.replace(".", "/")
            theirs = dict(constants(file)) if (file := folder.with_suffix(".py")).exists() else {}
            for alias in node.names:
                name = alias.asname or alias.name
                if alias.name in theirs:
                    names[name] = theirs[alias.name]
                elif (file := folder / f"{alias.name}.py").exists():
                    names |= {f"{name}.{key}": text for key, text in constants(file)}
    return names


def compared_in(tree):
    """What is compared, or matched, somewhere in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            yield from (node.left, *node.comparators)
        elif isinstance(node, ast.match_case):
            yield node.pattern
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in MATCHING:
            yield from node.args


def test_no_code_compares_a_sentence():
    """Nor does Python, whether it stands there or has a name."""
    sentences = set()
    for path in FILES:
        name = path.relative_to(ROOT / "ledger").as_posix()
        allowed = ALLOWED.get(name, set())
        if name.partition("/")[0] in FOREIGN or allowed is None:
            continue
        names = known_in(path)
        for compared in compared_in(ast.parse(path.read_text())):
            for node in () if isinstance(compared, ast.Call) else ast.walk(compared):
                is_text = isinstance(node, ast.Constant)
                text = node.value if is_text else names.get(ast.unparse(node))
                if isinstance(text, str) and SENTENCE.search(text) and text not in allowed:
                    sentences.add((name, text))
    assert not sentences


@pytest.mark.parametrize(
    ("name", "cause"), [("failure_cause", FailureCause), ("hold_cause", HoldCause)]
)
def test_causes_are_those_of_the_ledger(name, cause):
    """The enum of PostgreSQL has the same values, in the same order."""
    tables = (ROOT / "migrations" / "baseline" / "tables.sql").read_text()
    (values,) = re.findall(rf"CREATE TYPE {name} AS ENUM \(([^)]*)\)", tables)
    assert re.findall(r"'(\w+)'", values) == list(cause)


def test_each_cause_without_a_reason_has_its_words():
    """Where no source, stage or sink gave a reason the cause is put into words, in one place."""
    functions = (ROOT / "migrations" / "baseline" / "functions.sql").read_text()
    (body,) = re.findall(r"CREATE FUNCTION failure_reason\(.*?\$\$(.*?)\$\$", functions, re.DOTALL)
    with_reason = {FailureCause.UNPARSED, FailureCause.REJECTED, FailureCause.REFUSED}
    assert set(re.findall(r"WHEN '(\w+)'", body)) == set(FailureCause) - with_reason
