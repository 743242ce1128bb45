"""Services on a batch, as transactions over the ledger: open, run, settle, publish, sweep."""
