"""The plugin's former module, for environments installed before ``ledger.airflow.plugin``."""

from typing import Any

from ledger.airflow import plugin


def __getattr__(name: str) -> Any:
    """Return ``AckledgerPlugin`` of the plugin's module."""
    return getattr(plugin, name)
