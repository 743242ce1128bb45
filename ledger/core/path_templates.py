"""Path templates: Airflow's Jinja filters over the interval and the run's parameters, nothing else.

Where a path leads is declared by the pipeline; a run's parameters only fill in names.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import date, datetime
from functools import cache
from typing import Any

from jinja2 import Environment, StrictUndefined, TemplateError, meta

from ledger.errors import DeclarationError, InputError

NAMES = ("interval_start", "interval_end", "params")
_BESIDE_LETTERS = " _-=+,@:."  # what a parameter may have in a path, with letters and digits


@cache
def _environment() -> Environment:
    environment = Environment(undefined=StrictUndefined, autoescape=False, finalize=_one_value)
    environment.filters.update(
        ds=lambda value: _utc_time(value).strftime("%Y-%m-%d"),
        ds_nodash=lambda value: _utc_time(value).strftime("%Y%m%d"),
        ts=lambda value: _utc_time(value).isoformat(),
        ts_nodash=lambda value: _utc_time(value).strftime("%Y%m%dT%H%M%S"),
        ts_nodash_with_tz=lambda value: (
            _utc_time(value).isoformat().replace("-", "").replace(":", "")
        ),
    )
    return environment


def _utc_time(value: Any) -> date:
    if not isinstance(value, date):
        raise TypeError(f"expected a time such as interval_start, found {value!r}")
    return value


def _one_value(value: Any) -> Any:
    """Return the value of an expression in a path. Raises TypeError for a collection: the brackets
    of a list would become a pattern.
    """
    if isinstance(value, Sequence | Mapping | Set) and not isinstance(value, str):
        raise TypeError(f"expected one value, found {value!r}")
    return value


def check(template: str) -> None:
    """Raise DeclarationError if ``template`` is malformed or uses any other name than NAMES.

    ``ds`` or ``logical_date`` as a name is refused: a manual or asset-triggered run has another
    one, or none, and would read the wrong file.
    """
    try:
        used = meta.find_undeclared_variables(_environment().parse(template))
    except TemplateError as exc:
        raise DeclarationError(f"path {template!r} is not a template: {exc}") from exc
    for name in sorted(used - set(NAMES)):
        raise DeclarationError(
            f"path {template!r} uses {name!r}; a path may use {', '.join(NAMES)} only, "
            "because other values differ between scheduled and manual runs. "
            "Write for example {{ interval_start | ds }}"
        )


def is_fixed(template: str) -> bool:
    """Return whether the path is the same for every run."""
    return not meta.find_undeclared_variables(_environment().parse(template))


def render(
    template: str, interval_start: datetime, interval_end: datetime, params: Mapping[str, Any]
) -> str:
    """Return the path of one batch.

    Raises InputError if the run lacks a parameter that the path names, or its value could lead to
    another folder, to several files or to another machine.
    """
    parameters = Parameters(template, "params", params)
    try:
        path_template = _environment().from_string(template)
        return path_template.render(
            interval_start=interval_start, interval_end=interval_end, params=parameters
        )
    except (TemplateError, TypeError, ValueError, ArithmeticError, AttributeError) as exc:
        raise InputError(
            f"path {template!r} cannot be rendered: {exc}; the run's parameters are "
            f"{sorted(params) or 'none'}"
        ) from exc


class _Several:
    """A list or dict among a run's parameters. Its values are checked when a path uses them.

    It has no text of its own, because the brackets of a list would become a pattern.
    """

    def __init__(self, template: str, name: str, values: Any):
        self._template = template
        self._name = name
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        raise InputError(
            f"path {self._template!r}: {self._name} is {self._values!r}, and a path takes one"
            " value: give a name only, or let the path choose one of them"
        )

    def _checked(self, name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return Parameters(self._template, name, value)
        if isinstance(value, list | tuple):
            return ListParameter(self._template, name, value)
        if not _is_name(str(value)):
            raise InputError(
                f"path {self._template!r}: {name} is {value!r}, and a parameter in a path may have "
                f"letters, digits and {_BESIDE_LETTERS.strip()!r} or spaces, no dot first and no "
                "'..'. The pipeline declares the folders and patterns; give a name only"
            )
        return value


class Parameters(_Several, Mapping[str, Any]):
    """Parameters of a run, by name. Parameters that no path uses may have any value."""

    def __getitem__(self, key: str) -> Any:
        return self._checked(f"{self._name}.{key}", self._values[key])

    def __iter__(self) -> Iterator[str]:
        return (self._checked(f"a name in {self._name}", key) for key in self._values)


class ListParameter(_Several, Sequence[Any]):
    """A list among a run's parameters. A path reads its values by index, and each value is checked
    when it is read.
    """

    def __getitem__(self, index: Any) -> Any:
        return self._checked(f"{self._name}[{index}]", self._values[index])


def _is_name(text: str) -> bool:
    """Return whether a text is a name or part of one, and no folder, pattern or address."""
    plain = all(character.isalnum() or character in _BESIDE_LETTERS for character in text)
    return plain and text != "" and ".." not in text and text[0] != "." and ":" not in text[-1]
