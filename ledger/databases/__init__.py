"""What holds for every database, the ledger's and those of sources and sinks."""
