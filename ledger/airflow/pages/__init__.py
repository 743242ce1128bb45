"""The ledger's pages in Airflow: an application for data, and the code that the browser runs."""
