"""Deltas: what a run adds to each root's ack value. Pure numpy: no Spark, no database."""
