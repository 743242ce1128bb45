"""Which failed records a replay takes, as the command line and a run's conf say it."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from ledger import FileSource, ParquetSink, Pipeline
from ledger.airflow.pipelines import SELECTING, selection
from ledger.batch import replay_matches
from ledger.cli import runs
from ledger.cli.base import app
from ledger.core.run_request import Selection
from ledger.errors import InputError, NotReadyError

DAY = datetime(2013, 1, 2, tzinfo=UTC)
# Of each field: how it is typed, how it stands in a conf, what the selection has.
FIELDS = {
    "reason": (["lost%"], "lost%", "lost%"),
    "step": (["parsed"], "parsed", "parsed"),
    "record": (["7"], 7, 7),
    "source": (["letters"], "letters", "letters"),
    "since": (["2013-01-02T00:00:00+0000"], "2013-01-02T00:00:00+00:00", DAY),
    "until": (["2013-01-02T00:00:00+0000"], "2013-01-02T00:00:00+00:00", DAY),
    "quarantined": ([], True, True),
    "from_source": ([], True, True),
    "accepted": ([], True, True),
}


@pytest.fixture
def replayed(monkeypatch):
    """Types ``replay`` with options; the selections that its search and its batch were asked
    for.
    """
    flow = Pipeline("letters")
    flow.source("letters", FileSource("letters.csv", schema="letter STRING"))
    flow.sink("shelf", ParquetSink("out"), reads="letters")
    asked = []

    def matching(database, pipeline, batch, selection_):
        asked.append(selection_)
        return [SimpleNamespace(batch_id=1)]

    def opened(database, settings, pipeline, key, original, selection_):
        asked.append(selection_)
        raise NotReadyError("another replay was first")

    monkeypatch.setattr(runs, "load", lambda target: flow)
    database = SimpleNamespace(transact=lambda work: [])
    monkeypatch.setattr(runs, "connect", lambda settings: database)
    monkeypatch.setattr(runs, "keep_all", lambda *_: None)
    monkeypatch.setattr(runs, "before_replay", lambda *_: None)
    monkeypatch.setattr(runs, "spark_session", lambda *_: None)
    monkeypatch.setattr(replay_matches, "matching_messages", matching)
    monkeypatch.setattr(runs, "open_replay", opened)

    def ask(*options):
        done = CliRunner().invoke(app, ["replay", "m:p", *options])
        assert done.exit_code == 3, done.output
        return asked

    return ask


def test_every_field_of_a_selection_is_tried_here():
    """A field that is added is asked for below, and is a key of a conf."""
    assert {*FIELDS, "causes"} == set(SELECTING)


def test_a_conf_names_causes():
    """The dialog of the pages alone asks for causes; what is no step and cause is refused."""
    causes = [
        {"step": "parsed", "cause": "lost"},
        {"step": "parsed", "cause": "rejected", "words": "no such city"},
    ]
    records = selection({"causes": causes})
    assert records == Selection(causes=causes)
    assert records.as_json() == {"causes": causes}
    for wrong in ([{"step": "parsed"}], [{**causes[0], "reason": "x"}], ["lost"], "lost"):
        with pytest.raises(InputError, match="expected causes as"):
            selection({"causes": wrong})


@pytest.mark.parametrize("name", FIELDS)
def test_what_is_typed_is_selected(replayed, name):
    """Each option of ``replay`` alone is that field of the selection, for the search and for the
    batch.
    """
    typed, _, value = FIELDS[name]
    wanted = Selection(**{name: value})
    assert replayed("--" + name.replace("_", "-"), *typed) == [wanted, wanted]


@pytest.mark.parametrize("name", FIELDS)
def test_what_a_conf_names_is_selected(name):
    """Each key of a run's conf alone is that field of the selection; others, and those without a
    value, are none.
    """
    _, conf_value, value = FIELDS[name]
    conf = {**dict.fromkeys(SELECTING), "replay_of": 3, name: conf_value}
    assert selection(conf) == Selection(**{name: value})


def test_a_conf_may_name_several():
    """All that a conf names is in one selection."""
    conf = {"from_source": True, "step": "parsed"}
    assert selection(conf) == Selection(step="parsed", from_source=True)
