"""Follow-ups of a settlement, one module each; ``ledger.batch.follow_ups`` has all in order."""
