"""The ledger in PostgreSQL: connections, the embedded server, the schema and its migrations."""
