"""Say which records of a function or a script reach no output, at which operation, and why.

Needs Spark and nothing else of ackledger: no ledger, no Airflow, no configuration.
"""
