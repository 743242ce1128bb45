"""Commands that messages recommend, as a user types them."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from ledger.core.run_request import Interval, instant

ANY_TARGET = "MODULE:PIPELINE"  # of a pipeline whose place is not known
ACCEPT_DAG = "ledger_accept"  # of the ledger that the environment names
REASON = '--reason "..."'  # which a person fills in
# How to continue in Airflow with what follows a settlement.
CLEAR_SETTLE = "clear `settle` (or `run`, if the DAG has one task a batch) and what is downstream"


def ackledger(command: str, *arguments: object, **options: object) -> str:
    """Return a command with arguments and options. An option that is True has no value, and one
    that is None or False is omitted.
    """
    words = ["ackledger", command, *map(str, arguments)]
    for name, value in options.items():
        if value is not None and value is not False:
            words.append(f"--{name.replace('_', '-')}")
            words += [] if value is True else [str(value)]
    return shlex.join(words)


def run(target: str, interval: Interval, *options: str) -> str:
    """Return the command that runs ``target`` over an interval with its parameters. ``options``:
    further options of ``ackledger run``.
    """
    bounds = {"from": instant(interval.start), "to": instant(interval.end)}
    words = [ackledger("run", target, **bounds)]
    words += [shlex.join(["--param", f"{key}={value}"]) for key, value in interval.params.items()]
    return " ".join([*words, *map(shlex.quote, options)])


def trigger(dag_id: str, conf: Mapping[str, Any]) -> str:
    """Return the command that triggers a run of a DAG."""
    return f"airflow dags trigger {dag_id} --conf {shlex.quote(json.dumps(conf))}"


def reprocess_in_airflow(dag_id: str, interval: Interval) -> str:
    """Return the command that triggers a run of a DAG which rereads an interval."""
    bounds = {"interval_start": instant(interval.start), "interval_end": instant(interval.end)}
    return trigger(dag_id, {**bounds, **interval.params, "reprocess": True})
