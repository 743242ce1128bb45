"""Folds a run's deltas, in the driver's threads while the ledger's columns are small, else in the
executors, and has the driver post them. The kernel is one (``ledger.deltas``).
"""
