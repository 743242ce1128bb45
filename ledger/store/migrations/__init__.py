"""Alembic migrations of the ledger's schema; run by ``ackledger db upgrade``."""
