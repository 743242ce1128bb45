"""Description of this package for Airflow's list of providers. Each process that reads the list
imports this module, so it imports nothing of the ledger.
"""

from typing import Any

CONN_TYPE = "ackledger"  # of connections to a ledger, and the section of Airflow's configuration
_INTEGRATION = "ackledger"


def get_provider_info() -> dict[str, Any]:
    """Return the description of the package for Airflow's ``provider_info.schema.json``.

    ``plugins`` is left out: Airflow loads those only with ``lazy_discover_providers = False``, and
    would then refuse the plugin that the entry point ``airflow.plugins`` has already brought.
    """
    return {
        "package-name": "ackledger",
        "name": "ackledger",
        "description": "Tracks every record of a batch pipeline from source to sink.",
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["software"]}],
        "connection-types": [
            {
                "connection-type": CONN_TYPE,
                "hook-class-name": "ledger.airflow.hooks.LedgerHook",
                "hook-name": "ackledger",
                "ui-field-behaviour": {
                    "hidden-fields": [],
                    "relabeling": {"schema": "Database", "extra": "Options of libpq"},
                    "placeholders": {
                        "host": "ledger.example, or the folder of a Unix socket",
                        "port": "5432",
                        "schema": "ledger",
                        "login": "etl",
                    },
                },
                "conn-fields": {
                    "storage": {
                        "label": "Storage",
                        "description": "Folder or URL of this ledger's snapshots and step outputs."
                        " Default: ACKLEDGER_STORAGE where tasks run.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "sslmode": {
                        "label": "TLS mode",
                        "description": "sslmode of libpq, for example verify-full.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "sslrootcert": {
                        "label": "TLS root certificate",
                        "description": "Path of the file where tasks run.",
                        "schema": {"type": ["string", "null"]},
                    },
                },
            }
        ],
        "hooks": _modules("hooks"),
        "operators": _modules("settlement", "spark_tasks", "sensors"),
        "sensors": _modules("sensors"),
        "triggers": _modules("sensors"),
        "notifications": [
            "ledger.airflow.notifiers.WhenFailedRatio",
            "ledger.airflow.notifiers.WhenQuarantineGrows",
        ],
        "extra-links": ["ledger.airflow.links.InLedger", "ledger.airflow.links.NextStep"],
        "config": {
            CONN_TYPE: {
                "description": "The ledger's pages in Airflow.",
                "options": {
                    "conn_ids": {
                        "description": "Connections of the ledgers that the pages show, separated"
                        " by commas. Default: the ledger of the API server's environment.",
                        "version_added": "1.0.0",
                        "type": "string",
                        "example": "ledger_sales,ledger_stock",
                        "default": "",
                    }
                },
            }
        },
    }


def _modules(*names: str) -> list[dict[str, Any]]:
    modules = [f"ledger.airflow.{name}" for name in names]
    return [{"integration-name": _INTEGRATION, "python-modules": modules}]
