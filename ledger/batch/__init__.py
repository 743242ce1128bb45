"""Services on a batch: opened, run, settled, published, swept. They speak to the ledger alone."""
