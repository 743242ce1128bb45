"""Rows that a sink has delivered before."""
