"""What the commands share: the application, its consoles, its options, how an error ends."""

import getpass
import json
import os
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ledger.core.text import printable
from ledger.errors import InputError
from ledger.pipeline.pipeline import Pipeline
from ledger.settings import VERBOSE

HELP = (
    "The ``ackledger`` command. Exit codes: 0 complete, 4 complete but for quarantined records that"
    " nobody has accepted, 3 failed records remain, 1 error."
)

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help=HELP,
    # Each option of a command by a variable, too: --limit of status is ACKLEDGER_STATUS_LIMIT.
    context_settings={"auto_envvar_prefix": "ACKLEDGER"},
)
db = typer.Typer(no_args_is_help=True, help="The ledger's database.")
app.add_typer(db, name="db")


def example(*arguments: str) -> str:
    """The end of a command's help: how one types it."""
    return "\n\n".join(["Examples:", *(f"  ackledger {one}" for one in arguments)])


Remote = Annotated[
    str | None,
    typer.Option(help="A Spark Connect server, sc://HOST:PORT, instead of a Spark of its own."),
]
Json = Annotated[
    bool, typer.Option("--json", envvar="ACKLEDGER_JSON", help="Print JSON instead of a table.")
]
Target = Annotated[
    str, typer.Argument(metavar="MODULE:PIPELINE", help="For example jobs.flights:pipeline.")
]
MOMENTS = ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"]
_UTC = "UTC, if it names no zone."
Start = typer.Option(formats=MOMENTS, help=f"Start of the interval, inclusive; {_UTC}")
End = typer.Option(formats=MOMENTS, help=f"End of the interval, exclusive; {_UTC}")
Since = typer.Option(formats=MOMENTS, help=f"Only records that failed last since then; {_UTC}")
Until = typer.Option(formats=MOMENTS, help=f"Only records that failed last before then; {_UTC}")
PipelineName = Annotated[str | None, typer.Option("--pipeline", help="Only this pipeline.")]
BatchNumber = Annotated[int | None, typer.Option("--batch", help="Only this batch.")]


class PlainConsole(Console):
    """Shows texts as they are: nothing in one commands the terminal, and no markup is read."""

    def __init__(self, **options: Any):
        super().__init__(markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """See ``Console``."""
        for one in super().render(renderable, options):
            yield one if one.control else Segment(printable(one.text), one.style)


out = PlainConsole()
err = PlainConsole(stderr=True)


def _show_version(asked: bool) -> None:
    if asked:
        out.print(f"ackledger {metadata.version('ackledger')}", highlight=False)
        raise typer.Exit


@app.callback(help=HELP)
def common(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version.",
            callback=_show_version,
            is_eager=True,
            allow_from_autoenv=False,
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", envvar=VERBOSE, help="Show the traceback of an error."),
    ] = False,
) -> None:
    """Options of the command itself."""
    if verbose:
        os.environ[VERBOSE] = "1"  # which the processes of Spark inherit


def fail(message: str) -> None:
    """Print one line and exit with 1."""
    err.print(f"ackledger: {message}", style="red", soft_wrap=True, highlight=False)
    sys.exit(1)


def show(data: Any, as_json: bool, table: Callable[[Any], Any]) -> None:
    """Print ``data`` as JSON, or as the table made of it."""
    if as_json:
        sys.stdout.write(json.dumps(data, default=str, indent=2) + "\n")
    else:
        # A table fits the terminal by itself; a line with a command to paste is never cut.
        out.print(table(data), crop=False)


def load(target: str) -> Pipeline:
    """The pipeline at MODULE:PIPELINE."""
    from ledger.pipeline.load import load_pipeline

    return load_pipeline(target)


def params_of(given: list[str]) -> dict[str, str]:
    """What --param gave, by name."""
    for one in given:
        if "=" not in one:
            raise InputError(f"--param {one!r}: expected NAME=VALUE")
    return dict(one.split("=", 1) for one in given)


def user() -> str:
    """Who types the command, as the ledger notes it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        return f"uid {os.getuid()}"
