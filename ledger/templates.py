"""Path templates: Airflow's Jinja filters over the interval and the run's parameters, nothing else."""

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any

from jinja2 import Environment, StrictUndefined, TemplateError, meta

from ledger.errors import DeclarationError, InputError

NAMES = ("interval_start", "interval_end", "params")


@cache
def _environment() -> Environment:
    environment = Environment(undefined=StrictUndefined, autoescape=False)
    environment.filters.update(
        ds=lambda moment: moment.strftime("%Y-%m-%d"),
        ds_nodash=lambda moment: moment.strftime("%Y%m%d"),
        ts=lambda moment: moment.isoformat(),
        ts_nodash=lambda moment: moment.strftime("%Y%m%dT%H%M%S"),
        ts_nodash_with_tz=lambda moment: moment.isoformat().replace("-", "").replace(":", ""),
    )
    return environment


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
    """Whether the path is the same for every run."""
    return not meta.find_undeclared_variables(_environment().parse(template))


def render(
    template: str, interval_start: datetime, interval_end: datetime, params: Mapping[str, Any]
) -> str:
    """The path of one batch. Raises InputError when the run lacks a parameter that it names."""
    try:
        return (
            _environment()
            .from_string(template)
            .render(interval_start=interval_start, interval_end=interval_end, params=dict(params))
        )
    except TemplateError as exc:
        raise InputError(
            f"path {template!r} cannot be rendered: {exc}; the run's parameters are "
            f"{sorted(params) or 'none'}"
        ) from exc
