"""Folds a run's deltas, and posts them: in the driver's threads while the ledger's columns are
small, else in the executors. The kernel is one (``ledger.deltas``).
"""
