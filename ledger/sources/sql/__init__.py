"""A table of a database as a source, read by a cursor that grows."""
