"""The examples of other tools on docs/comparison.md, as far as they run without these tools."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from ledger import ParquetSink
from tests.support.pages import blocks
from tests.tools.__main__ import requirements
from tests.tools.example import HEADINGS, PAGE, declared


@pytest.mark.parametrize("tool", HEADINGS)
def test_an_example_is_declared_without_its_tool(tool, tmp_path, monkeypatch):
    """Airflow parses a DAG file where the tool is not installed: the stage imports it when it
    runs.
    """
    monkeypatch.chdir(tmp_path)
    without = [block for block in blocks(PAGE, "python") if "def verify" not in block.code]
    pipeline = declared(tool, [*without, *blocks(PAGE, "yaml")])["pipeline"]
    pipeline.sink("out", ParquetSink("out"), reads="checked")
    assert [step.name for step in pipeline.steps()] == ["orders", "checked", "out"]


@pytest.mark.parametrize("tool", HEADINGS)
def test_the_page_names_the_versions_that_run(tool):
    """Those that ``make test-tools`` installs."""
    row = re.search(rf"^\| {HEADINGS[tool]} \| (.+?) \|", _versions(), re.MULTILINE)[1]
    pins = dict(line.split("==") for line in requirements(tool).read_text().split())
    shown = dict(re.findall(r"`([\w-]+)` ([\d.]+)", row))
    assert shown.items() <= pins.items()
    assert shown


def _versions():
    return PAGE.read_text().partition("### Versions\n")[2]


def test_declarative_pipelines_have_no_expectations():
    """The page lists what the installed module exports."""
    text = PAGE.read_text().partition("the module exports ")[2].partition(". `@dp.expect`")[0]
    source = Path(find_spec("pyspark").origin).with_name("pipelines") / "__init__.py"
    exported = re.findall(r'^    "(\w+)",$', source.read_text(), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", text)) == sorted(exported)
