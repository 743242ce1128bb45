"""Documentation of a pipeline's DAG and its tasks on Airflow's pages, in Markdown."""

from collections.abc import Callable
from inspect import cleandoc
from typing import Any

from ledger.pipeline.pipeline import Pipeline

_DAG = """\
Every record of pipeline **{name}** is tracked from source to sink. A run opens a batch, runs its
steps, and settles: it decides of each record whether it has arrived in every sink. The last task,
`complete`, is red while records are lost, and its log says which and what to do. So does the tab
**Ledger** of the run: where the rows went, the records that were lost, and how to replay them.

| step | kind | reads | |
|---|---|---|---|
{steps}
"""
OPEN = "Opens the run's batch, or finds it again: what it reads, and what it claims of its sources."
WHOLE = "Runs all pending steps of the batch in one driver, settles it, and does what follows."
COMPLETE = (
    "Reports what the batch has come to. Red while records are failed, or quarantined and not"
    " accepted, beyond what the pipeline tolerates."
)


def dag(pipeline: Pipeline) -> str:
    """Return the documentation of the DAG: its steps as a table, each with the first sentence of
    its function's docstring.
    """
    lines = []
    for step in (*pipeline.steps(), *pipeline.followers()):
        purpose = " ".join(_docstring(step).split("\n\n")[0].split()).replace("|", "\\|")
        lines.append(f"| `{step.name}` | {_kind(step)} | {_names(step.inputs)} | {purpose} |")
    return _DAG.format(name=pipeline.name, steps="\n".join(lines))


def step(declared: Any) -> str:
    """Return the documentation of a step's task: what it reads, and its function's docstring."""
    reads = f", reads {_names(declared.inputs)}" if declared.inputs else ""
    head = f"The {_kind(declared)} `{declared.name}`{reads}."
    text = _docstring(declared)
    return f"{head}\n\n{text}" if text else head


def _kind(declared: Any) -> str:
    return type(declared).__name__.removesuffix("Step").lower()


def _names(inputs: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in inputs)


def _docstring(declared: Any) -> str:
    function: Callable[..., Any] | None = getattr(declared, "function", None)
    return cleandoc(function.__doc__) if function is not None and function.__doc__ else ""
