"""Which runs have written for a batch, by the names of their folders."""

import pytest

from ledger.storage.folders import runs_beside


@pytest.mark.parametrize("sign", ["=", "-"])
def test_the_runs_of_a_batch(tmp_path, sign):
    """All beside the run's own folder, and nothing that is no run's; none before anything was
    written."""
    batch = tmp_path / f"batch{sign}8"
    own = f"{batch}/run{sign}40"
    assert runs_beside(own) == {}
    for name in (
        f"run{sign}31",
        f"run{sign}40",
        f"run{sign}31.json",
        "kept-31-a",
        "run",
        f"run{sign}\u00b2",
    ):
        (batch / name).mkdir(parents=True)
    assert runs_beside(f"{own}\n") == {}
    assert runs_beside(own) == {run: f"{batch}/run{sign}{run}" for run in (31, 40)}


def test_a_folder_of_no_batch(tmp_path):
    """What a sink of a user's own lays out in another way says nothing of a batch's runs."""
    (tmp_path / "run=31").mkdir()
    assert runs_beside(f"{tmp_path}/run=40") == {}
