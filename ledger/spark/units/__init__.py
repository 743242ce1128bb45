"""Replay units: the records that are replayed together downstream of a whole stage."""
