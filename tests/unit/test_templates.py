"""Paths are templates over the interval and the run's parameters, and nothing else."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from ledger.core.path_templates import check, render
from ledger.core.run_request import Interval
from ledger.errors import DeclarationError, InputError

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
        ("{{ interval_start.strftime('%Y/%m') }}/*.csv", "2013/01/*.csv"),
        ("{{ interval_start.year }}/{{ params.region }}", "2013/east"),
    ],
)
def test_rendering(template, path):
    """Airflow's filters work on both ends of the interval, and parameters by name."""
    check(template)
    assert render(template, START, END, {"region": "east"}) == path


def test_bounds_are_rendered_in_utc():
    """A run whose interval has another offset reads the same path as the ledger's, in UTC."""
    east = timezone(timedelta(hours=2))
    interval = Interval(datetime(2013, 1, 1, 1, tzinfo=east), datetime(2013, 2, 1, 1, tzinfo=east))
    path = "{{ interval_start.strftime('%Y/%m') }}/{{ interval_end | ds }}.csv"
    assert render(path, interval.start, interval.end, {}) == "2012/12/2013-01-31.csv"


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


LEADING_ELSEWHERE = [
    "..", "../secrets", "a/b", "/etc/passwd", "a\\b", "x..y", ".hidden", "~", "~root", "*", "a?",
    "[ab]", "{a,b}", "s3://bucket", "file:", "a\0b", "a\nb", "\uff0f", "\uff0e\uff0e", "", "%2e%2e",
    "\u2024\u2024", "$HOME",
]  # fmt: skip


@pytest.mark.parametrize("value", LEADING_ELSEWHERE)
def test_a_parameter_cannot_lead_elsewhere(value):
    """A value that names a folder, a pattern or an address is refused, with what is allowed."""
    expected = r"params.region is .*may have letters, digits and .*give a name only"
    for template in ("{{ params.region }}/*.csv", "data/{{ params['region'] | upper }}.csv"):
        with pytest.raises(InputError, match=expected):
            render(template, START, END, {"region": value})


@pytest.mark.parametrize(
    ("template", "params"),
    [
        ("{{ params.deep.region }}", {"deep": {"region": "../x"}}),
        ("{{ params.many | join('-') }}", {"many": ["a", "../x"]}),
        ("{{ params.get('region', 'all') }}", {"region": "../x"}),
        ("{% for key, value in params.items() %}{{ value }}{% endfor %}", {"region": "../x"}),
        ("{% for value in params.values() %}{{ value }}{% endfor %}", {"region": "../x"}),
        ("{% for name in params %}{{ name }}{% endfor %}", {"../x": "east"}),
    ],
)
def test_no_way_round_the_check(template, params):
    """However a path asks for a parameter, it gets a checked one."""
    with pytest.raises(InputError, match=r"\.\./x.*give a name only"):
        render(template, START, END, params)


@pytest.mark.parametrize(
    ("template", "params", "path"),
    [
        ("s3://bucket/{{ params.region }}/*.csv", {"region": "east"}, "s3://bucket/east/*.csv"),
        (
            "/data/../in/{{ params.day }}",
            {"day": "2024-01-05T06:30+02"},
            "/data/../in/2024-01-05T06:30+02",
        ),
        ("{{ interval_start.strftime('%Y/%m') }}/{{ params.n }}.csv", {"n": -3}, "2013/01/-3.csv"),
        (
            "{a,b}/{{ params.city }}",
            {"city": "S\u00e3o Paulo v1.2", "note": "../*"},
            "{a,b}/S\u00e3o Paulo v1.2",
        ),
    ],
)
def test_what_the_pipeline_declares_stays(template, params, path):
    """Absolute paths, addresses and patterns of the pipeline's own work, and so do other params."""
    assert render(template, START, END, params) == path


def test_a_template_that_fails():
    """What a template does wrong with a value is one line of the ledger's own."""
    with pytest.raises(InputError, match=r"cannot be rendered.*parameters are \['n'\]"):
        render("{{ interval_start + params.n }}", START, END, {"n": 1})


@pytest.mark.parametrize("value", [["ab"], ["a", "b"], {"a": "b"}, [], [["ab"]]])
@pytest.mark.parametrize(
    "expression",
    [
        "params.region",
        "params.region ~ ''",
        "params.region | upper",
        "params.region | string",
        "'%s' | format(params.region)",
        "params.region | pprint",
    ],
)
def test_several_values_are_no_name(expression, value):
    """A list or a dict has no text in a path: its brackets would be a pattern."""
    with pytest.raises(InputError, match=r"params\.region is .*a path takes one value") as error:
        render("{{ " + expression + " }}/*.csv", START, END, {"region": value})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "expression",
    [
        "params.many | list",
        "params.many | sort",
        "params.many | tojson",
        "params.deep | dictsort",
        "params | list",
    ],
)
def test_no_list_by_a_filter(expression):
    """Nor does a filter make a list a pattern."""
    with pytest.raises(InputError, match=r"cannot be rendered|takes one value"):
        render("{{ " + expression + " }}", START, END, {"many": ["ab"], "deep": {"a": "b"}})


def test_one_of_several():
    """One value of a list or a dict is a name as any other."""
    template = "{{ params.many[1] }}-{{ params.many | last }}-{{ params.many | join('+') }}"
    params = {"many": ["a", "b"], "deep": {"x": "c"}}
    assert render(template, START, END, params) == "b-b-a+b"
    assert render("{{ params.deep.x }}{{ params.many[1:] | first }}", START, END, params) == "cb"


def test_a_text_is_no_time():
    """A filter of times over a text says what it expected and found."""
    with pytest.raises(InputError, match=r"expected a time such as interval_start, found '2024'"):
        render("{{ params.day | ds }}", START, END, {"day": "2024"})
