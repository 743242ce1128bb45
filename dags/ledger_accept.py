"""Accepts quarantined records of a batch: by hand, with a form."""

from ledger.airflow import accept_dag

dag = accept_dag()
