"""One module a kind of step: how it runs on Spark."""
