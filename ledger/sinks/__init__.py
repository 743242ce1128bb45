"""Sinks that a pipeline can write to: one folder for each kind."""
