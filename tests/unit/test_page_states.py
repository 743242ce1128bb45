"""What the pages in Airflow say of each state."""

import re

import pytest

from ledger.batch.records.explain import NOT_DECIDED
from tests.support.places import ROOT

TABLES = ROOT / "migrations" / "baseline" / "tables.sql"
PARTS = ROOT / "ledger" / "airflow" / "pages" / "static" / "parts.js"
# Those of batches, runs and failed records, as the ledger's types have them.
OF_TYPES = {
    state
    for name, states in re.findall(r"CREATE TYPE (\w+) AS ENUM \(([^)]*)\)", TABLES.read_text())
    if name not in ("batch_kind", "failure_cause", "hold_cause", "guarantee", "publish_policy")
    for state in re.findall(r"'(\w+)'", states)
}
OTHERS = {
    *("acked", "pending", NOT_DECIDED),  # records that have not failed, or not yet
    *("complete", "tolerated", "unpublished", "quarantined"),  # settled batches
    *("decided", "ready", "published", "replaced"),  # publications
    *("queued", "success", "not run"),  # runs of Airflow; steps
}


@pytest.mark.parametrize("state", sorted(OF_TYPES | OTHERS))
def test_every_state_has_a_color_and_a_meaning(state):
    """A tag is never gray and mute because the pages do not know its state."""
    table = PARTS.read_text().partition("export const STATES = {")[2].partition("};")[0]
    names = re.findall(r'^  (?:"(.+?)"|(\w+)): \[', table, re.MULTILINE)
    assert state in {quoted or bare for quoted, bare in names}
