"""Advice on what to do next about a batch or a record: a sentence, and a command that can be
pasted. The command line, the DAG, the pages and the alerts take their words from here.

Nothing is looked up here: the caller passes the facts from the ledger.
"""
