"""All SQL of the ledger: one function a statement, one module a family of tables."""
