"""Notifiers for tests: they write to a file, a line of JSON for each notification."""

import json
from pathlib import Path
from typing import Any

from airflow.sdk import BaseNotifier


class FileNotifier(BaseNotifier):
    """Appends its text, which is templated, to the file at ``path``."""

    template_fields = ("text",)

    def __init__(self, path: str, text: str):
        super().__init__()
        self.path, self.text = path, text

    def notify(self, context: Any) -> None:
        """See ``BaseNotifier``."""
        append_line(self.path, self.text)


def write_facts(path: str, context: Any) -> None:
    """A function of the context: appends the facts."""
    append_line(path, context["ledger"])


def append_line(path: str, message: Any) -> None:
    """One line more."""
    with Path(path).open("a") as file:
        file.write(json.dumps(message, default=str) + "\n")


def messages(path: Path) -> list[Any]:
    """All lines so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
