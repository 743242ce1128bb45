"""The command that creates a project: ``init``."""

from importlib import resources
from keyword import iskeyword
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from ledger.cli import tables
from ledger.cli.base import Json, app, example, show
from ledger.core.commands import ackledger
from ledger.errors import InputError

# Where each template goes; the pipeline's name stands for {name}.
_FILES = {
    "pipeline.py.template": "{name}.py",
    "dag.py.template": "dags/{name}_dag.py",
    "ledger_dags.py.template": "dags/ledger_dags.py",
    "test.py.template": "tests/test_{name}.py",
    "orders.csv": "data/orders/2026-01-01/orders.csv",
    "customers.csv": "data/customers.csv",
    "pyproject.toml.template": "pyproject.toml",
    "README.md.template": "README.md",
    "gitignore": ".gitignore",
}


@app.command(epilog=example("init shop", "init shop --name sales"))
def init(
    folder: Annotated[Path, typer.Argument(help="Made if it is missing.")],
    name: Annotated[
        str, typer.Option(help="Of the pipeline and its module, for example orders.")
    ] = "orders",
    as_json: Json = False,
) -> None:
    """Create a project: pipeline, DAG, test, a day of data.

    Its README says what to type. No file is overwritten.
    """
    _check_name(name)
    places = {source: folder / path.format(name=name) for source, path in _FILES.items()}
    taken = [str(path) for path in places.values() if path.exists()]
    if taken:
        raise InputError(
            f"these files are there already: {', '.join(taken)}. Name another folder, or remove"
            " them"
        )
    templates = resources.files("ledger.cli") / "new"
    for source, path in places.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (templates / source).read_text()
        path.write_text(Template(text).substitute(name=name))
    day = {"from": "2026-01-01", "to": "2026-01-02"}
    run = ackledger("run", f"{name}:pipeline", **day)
    show(
        {
            "files": [str(path.relative_to(folder)) for path in places.values()],
            "next": f"cd {folder} && ACKLEDGER_DATA=data {run}",
            "then": f"read {folder / 'README.md'}",
        },
        as_json,
        lambda data: tables.facts({**data, "files": ", ".join(data["files"])}),
    )


def _check_name(name: str) -> None:
    """Raise InputError for a name that the user's module cannot have."""
    taken = name in ("ledger", "dags", "tests", "data")
    if not name.isidentifier() or iskeyword(name) or taken:
        raise InputError(
            f"--name {name!r}: expected a name of a Python module, such as orders, that is neither"
            " ledger nor a folder of the project"
        )
