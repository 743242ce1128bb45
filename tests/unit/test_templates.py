"""Paths are templates over the interval and the run's parameters, and nothing else."""

from datetime import UTC, datetime

import pytest

from ledger.errors import DeclarationError, InputError
from ledger.templates import check, render

START = datetime(2013, 1, 1, 6, 30, tzinfo=UTC)
END = datetime(2013, 2, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ("plain/*.csv", "plain/*.csv"),
        ("{{ interval_start | ds }}.csv", "2013-01-01.csv"),
        ("{{ interval_end | ds_nodash }}", "20130201"),
        ("{{ interval_start | ts }}", "2013-01-01T06:30:00+00:00"),
        ("{{ interval_start | ts_nodash }}", "20130101T063000"),
        ("{{ interval_start | ts_nodash_with_tz }}", "20130101T063000+0000"),
        ("{{ interval_start.year }}/{{ params.region }}", "2013/east"),
    ],
)
def test_rendering(template, path):
    """Airflow's filters work on both ends of the interval, and parameters by name."""
    check(template)
    assert render(template, START, END, {"region": "east"}) == path


@pytest.mark.parametrize("name", ["ds", "logical_date", "execution_date", "data_interval_start"])
def test_other_names_are_refused(name):
    """What differs between scheduled and manual runs may not choose the file that is read."""
    with pytest.raises(DeclarationError, match=f"uses '{name}'.*interval_start | ds"):
        check("{{ " + name + " }}.csv")


def test_malformed_template():
    """A template that does not parse is refused with its text."""
    with pytest.raises(DeclarationError, match=r"'\{\{ interval_start .csv' is not a template"):
        check("{{ interval_start .csv")


def test_missing_parameter():
    """A run without a parameter that the path names fails, with those that it has."""
    with pytest.raises(InputError, match=r"cannot be rendered.*region.*parameters are \['city'\]"):
        render("{{ params.region }}", START, END, {"city": "x"})
