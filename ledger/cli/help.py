"""The application ``ackledger``: its groups of commands, and their ``--help``."""

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.models import CommandFunctionType

# The groups of --help with their commands, both in the order of use.
PANELS = {
    "Try": ("audit",),
    "Run": ("run", "backfill", "replay", "restart", "publish"),
    "Look": ("status", "failed", "explain", "trace", "sql"),
    "Decide": ("quarantine", "accept", "release"),
    "Operate": ("sweep", "settle", "gc", "forget"),
    "Set up": ("init", "check", "db"),
}


class _Command(TyperCommand):
    """A command whose help is broken into lines by the terminal, not by the source."""

    def __init__(self, *args: Any, **options: Any):
        paragraphs = (options.get("help") or "").split("\n\n")
        options["help"] = "\n\n".join(" ".join(text.split()) for text in paragraphs)
        super().__init__(*args, **options)

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


class _Part(TyperGroup):
    """Commands that share a word, as ``db`` does."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


class AllCommands(_Part):
    """The group of all commands, in panels."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands: those of the groups in their order, then any others."""
        names = [name for names in PANELS.values() for name in names if name in self.commands]
        return [*names, *(name for name in self.commands if name not in names)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command, with its panel."""
        command: Any = super().get_command(ctx, cmd_name)
        if command is not None:
            panels = (panel for panel, names in PANELS.items() if cmd_name in names)
            command.rich_help_panel = next(panels, None)
        return command


def _plain(params: list[Any]) -> list[Any]:
    """Return options without their variables, which docs/reference/command-line.md lists, and flags
    without a type.
    """
    for param in params:
        if isinstance(param, TyperOption):
            param.show_envvar = False
            param.metavar = "" if param.is_flag else param.metavar
    return params


class CommandLine(typer.Typer):
    """A ``Typer`` whose commands show their help in paragraphs."""

    def __init__(self, *, cls: type[TyperGroup] = _Part, **options: Any):
        super().__init__(cls=cls, **options)

    def command(
        self, name: str | None = None, **options: Any
    ) -> Callable[[CommandFunctionType], CommandFunctionType]:
        return super().command(name, cls=_Command, **options)
