"""Parts common to all databases: the ledger's and those of sources and sinks."""
