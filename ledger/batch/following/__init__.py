"""What follows a settlement, a module each; ``ledger.batch.follow_ups`` has all in order."""
