"""Shared by the commands: the application, its consoles, options and variables, and how an error
ends it.
"""

import getpass
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from importlib import metadata
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ledger.cli.help import AllCommands, CommandLine
from ledger.core.text import printable
from ledger.errors import InputError, LedgerError, suggestion
from ledger.pipeline.pipeline import Pipeline
from ledger.settings import VERBOSE, Settings
from ledger.settings import verbose as is_verbose
from ledger.spark.failures import noted

HELP = (
    "Run pipelines, and find out what became of each record. Exit codes: 0 complete, 4 complete"
    " but for quarantined records that are not accepted, 3 failed records remain, 1 error."
)

VARIABLES = "ACKLEDGER_"  # prefix of the variables of settings and options
_OF_COMPOSE = {"ACKLEDGER_DB_PASSWORD", "ACKLEDGER_READER_PASSWORD"}  # see docker-compose.yml

app = CommandLine(
    cls=AllCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help=HELP,
    # Each option of a command by a variable, too: --limit of status is ACKLEDGER_STATUS_LIMIT.
    context_settings={"auto_envvar_prefix": "ACKLEDGER"},
)
db = CommandLine(no_args_is_help=True, help="Manage the ledger's database.")
app.add_typer(db, name="db")


def example(*arguments: str) -> str:
    """Return the end of a command's help: its examples, as a user types them."""
    return "\n\n".join(["Examples:", *(f"  ackledger {argument}" for argument in arguments)])


LOCAL = "local[*]"
Spark = Annotated[
    str, typer.Option(help="Spark master, or a Spark Connect server, sc://HOST:PORT.")
]
Json = Annotated[
    bool, typer.Option("--json", envvar="ACKLEDGER_JSON", help="Print JSON instead of a table.")
]
Params = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="For the path templates.")
]
Target = Annotated[
    str, typer.Argument(metavar="MODULE:PIPELINE", help="For example jobs.flights:pipeline.")
]
RECORD_HELP = "Its number, as 'failed --records' shows it."
Records = Annotated[
    str,
    typer.Argument(
        metavar="RECORD",
        help="Its number, or a condition that fields of records meet: \"order_id = 'O7'\".",
    ),
]
_TIME = "YYYY-MM-DD[THH:MM]"
_TIMES = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d(:?\d\d)?)?)?")


def _time(value: str) -> datetime:
    try:
        if _TIMES.fullmatch(value):
            return datetime.fromisoformat(value)
    except ValueError:  # no day of a calendar
        pass
    raise typer.BadParameter(
        f"{value!r}: expected {_TIME}, for example 2026-01-31 or 2026-01-31T06:30; in UTC, unless"
        " a zone follows, as in 2026-01-31T06:30+02:00"
    )


def time_option(what: str, *names: str, **options: Any) -> Any:
    """Return an option that is a time. ``what``: the sentence of its help."""
    return typer.Option(
        *names, parser=_time, metavar=_TIME, help=f"{what} UTC by default.", **options
    )


def interval_options(command: str) -> tuple[Any, Any]:
    """Return the options ``--from`` and ``--to`` of a command over one interval."""
    return (
        time_option(
            "Start of the interval, inclusive.", "--from", envvar=f"ACKLEDGER_{command}_FROM"
        ),
        time_option("End of the interval, exclusive.", "--to", envvar=f"ACKLEDGER_{command}_TO"),
    )


Since = time_option("Only records that last failed at or after this time.")
Until = time_option("Only records that last failed before this time.")
PipelineName = Annotated[str | None, typer.Option("--pipeline", help="Only this pipeline.")]
BatchNumber = Annotated[int | None, typer.Option("--batch", help="Only this batch.")]
BATCH = typer.Argument(help="Its number, as 'status' shows it.")


class PlainConsole(Console):
    """Prints texts as they are: without control characters, and without reading them as markup."""

    def __init__(self, **options: Any):
        super().__init__(markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


out = PlainConsole()
err = PlainConsole(stderr=True)


def _show_version(asked: bool) -> None:
    if asked:
        out.print(f"ackledger {metadata.version('ackledger')}", highlight=False)
        raise typer.Exit


@app.callback(help=HELP)
def common(
    context: typer.Context,
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
    """Warn of unknown variables, and note ``--verbose``."""
    if verbose:
        os.environ[VERBOSE] = "1"  # which the processes of Spark inherit
    for sentence in unknown_variables(os.environ, context.command):
        err.print(f"ackledger: {sentence}", style="yellow", soft_wrap=True, highlight=False)


def commands_of(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command of a group, with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, (*words, name))
        else:
            yield (*words, name), command


def variable_of(words: Iterable[str], option: Any) -> str:
    """Return the environment variable of a command's option. ``words``: the words that call the
    command.
    """
    automatic = "_".join((*words, option.name)).upper().replace("-", "_")
    return str(option.envvar or f"{VARIABLES}{automatic}")


def unknown_variables(names: Iterable[str], group: Any) -> list[str]:
    """Return a warning for each name that looks like a variable of ackledger and is none."""
    valid = {f"{VARIABLES}{name}".upper() for name in Settings.model_fields}
    valid |= {VERBOSE} | _OF_COMPOSE
    for words, command in commands_of(group):
        options = (param for param in command.params if param.param_type_name == "option")
        valid |= {variable_of(words, option) for option in options}
    return [
        f"variable {name} is ignored: there is none of that name"
        + (hint if "did you mean" in (hint := suggestion(name, valid)) else "")
        for name in sorted(names)
        if name.startswith(VARIABLES) and name not in valid
    ]


def fail(message: str, code: int = 1) -> NoReturn:
    """Print one line and exit with a code."""
    err.print(f"ackledger: {message}", style="red", soft_wrap=True, highlight=False)
    sys.exit(code)


def fail_with(exc: Exception, code: int = 1) -> NoReturn:
    """Print what failed and exit with a code: in one line, with the command that goes on where one
    was noted, or in a line for each thing that is wrong. ``--verbose`` adds the traceback.
    """
    if is_verbose():
        err.print("".join(traceback.format_exception(exc)), highlight=False)
    fail("\n  ".join(exc.lines) if isinstance(exc, LedgerError) and exc.lines else noted(exc), code)


def show(data: Any, as_json: bool, table: Callable[[Any], Any]) -> None:
    """Print ``data`` as JSON, or the table that ``table`` makes of it."""
    if as_json:
        sys.stdout.write(json.dumps(data, default=str, indent=2) + "\n")
    else:
        # A table fits the terminal by itself; a line with a command to paste is never cut.
        out.print(table(data), crop=False)


def in_user_words(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data with the key ``records`` instead of ``roots``."""
    return {"records" if name == "roots" else name: value for name, value in data.items()}


def load(target: str) -> Pipeline:
    """Load the pipeline at MODULE:PIPELINE. Raises DeclarationError if there is none."""
    from ledger.pipeline.load import load_pipeline

    return load_pipeline(target)


def params_of(pairs: list[str]) -> dict[str, str]:
    """Return the values of --param by name. Raises InputError for one without ``=``."""
    for pair in pairs:
        if "=" not in pair:
            raise InputError(f"--param {pair!r}: expected NAME=VALUE")
    return dict(pair.split("=", 1) for pair in pairs)


def user() -> str:
    """Return the user of the command, as the ledger records it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        return f"uid {os.getuid()}"
