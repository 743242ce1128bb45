"""Read the records of a text by columns, with Arrow's readers, where these are exact.

``ledger.sources.parsing.exact`` reads all other records.
"""
