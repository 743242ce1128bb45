"""Whether a command that is printed can be typed, and a batch to print it of."""

import json
import shlex
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache
from typing import Any

from typer.main import get_command

from ledger.airflow.pipelines import SELECTING
from ledger.cli.base import app
from ledger.core.declared_steps import DeclaredStep
from ledger.core.run_request import REPROCESS
from ledger.core.states import BatchKind, Guarantee, PublishPolicy
from ledger.store.queries.batches import Batch

CONFS = {
    "ledger_accept": {"batch", "reason"},
    "a": {*SELECTING, "replay_of", "interval_start", "interval_end", "region", "reprocess"},
}
_TOPOLOGY = (
    DeclaredStep("src", "source"),
    DeclaredStep("join", "stage"),
    DeclaredStep("total", "combine", after=True),
)


def batch(**values: Any) -> Batch:
    """Batch 7, or a replay of batch 3, of a run of the command line or of DAG a."""
    kind = values.get("kind", BatchKind.ORIGINAL)
    defaults: dict[str, Any] = {
        "batch_id": 7,
        "kind": kind,
        "original_batch_id": 3 if kind is BatchKind.REPLAY else None,
        "dag_id": "",
        "run_id": "my run-3",
        "interval_start": datetime(2013, 1, 1, tzinfo=UTC),
        "interval_end": datetime(2013, 2, 1, tzinfo=UTC),
        "params": {"region": "north west"},
        "topology": _TOPOLOGY,
        "guarantee": Guarantee.EXACTLY_ONCE,
        "publish": PublishPolicy.SETTLED,
        **values,
    }
    return Batch(**{field.name: defaults.get(field.name) for field in fields(Batch)})


def require_typed(command: str | None) -> None:
    """Fail unless the command line takes the command as it is, or a DAG the conf of a run; a click
    in Airflow names what is cleared. None is no command.
    """
    if command is None:
        return
    program, *words = shlex.split(command)
    if program == "ackledger":
        _parse(words)
    elif program == "airflow":
        assert words[:2] == ["dags", "trigger"], command
        assert words[3] == "--conf", command
        assert set(json.loads(words[4])) <= CONFS[words[2]], command
    else:
        assert "clear " in command, command
    assert REPROCESS not in command, command


def _parse(words: list[str]) -> None:
    """As the command line parses these words; raises its UsageError."""
    name, *rest = words
    _commands()[name].make_context(name, rest)


@cache
def _commands() -> Any:
    program: Any = get_command(app)
    return program.commands
