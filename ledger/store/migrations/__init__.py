"""The ledger's schema: one baseline in SQL, run by Alembic on ``ackledger db upgrade``."""
