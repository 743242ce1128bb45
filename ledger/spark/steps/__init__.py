"""Steps on Spark: one module for each kind."""
