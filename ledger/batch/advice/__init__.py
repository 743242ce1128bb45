"""What to do next: from what a batch or a record is, and why, to a sentence and a command that can
be pasted. The command line, the DAG, the pages and the alerts have their words from here.

Nothing is looked up here: the caller brings what the ledger knows.
"""
