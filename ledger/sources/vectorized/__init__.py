"""Records of a text read by columns, with Arrow's readers, where these are sure to read what the
exact reader would: see ``ledger.sources.parsing.exact``, which reads the others.
"""
