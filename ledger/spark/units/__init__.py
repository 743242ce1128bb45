"""Replay units: the records that are replayed together behind a whole stage."""
