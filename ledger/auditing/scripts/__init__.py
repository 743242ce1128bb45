"""Audit a script as it is: its reads and writes are intercepted while it runs."""
