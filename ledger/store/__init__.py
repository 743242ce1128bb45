"""The ledger in PostgreSQL: connections, the embedded server, the upgrade of its schema."""
