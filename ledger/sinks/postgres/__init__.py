"""A table in PostgreSQL as a sink."""
