"""``make demo``: the real pipeline over real data, from an empty folder to a settled ledger."""
