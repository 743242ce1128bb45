"""All SQL of the ledger: one function per statement, named as the services call it."""
