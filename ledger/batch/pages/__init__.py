"""Readings of the ledger for the pages, by pipeline, by batch and by record."""
