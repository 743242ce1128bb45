"""Upkeep of an installation: the sweeper, retention, checks."""
