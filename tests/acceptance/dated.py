"""A small pipeline whose DAG is run by hand, for a date."""

from tests.support.ledgers import pipeline as chain

pipeline = chain("dated")
