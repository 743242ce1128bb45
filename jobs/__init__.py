"""Example pipelines, and the program that spark-submit runs for one step of one batch."""
