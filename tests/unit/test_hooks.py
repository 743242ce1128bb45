"""The hooks of pre-commit are the linters that CI runs."""

import re

import yaml

from tests.support.places import ROOT


def test_pre_commit_runs_what_make_lint_runs():
    """Each command of ``make lint`` is a local hook from .venv, and nothing else is."""
    (recipe,) = re.findall(r"^lint:.*\n\t@(.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    hooks = [hook["entry"] for repo in repos for hook in repo["hooks"]]
    assert hooks == [f".venv/bin/{command}" for command in recipe.split(" && ")]
