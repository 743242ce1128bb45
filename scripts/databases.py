"""Create Airflow's own database beside the ledger's, unless it is there: for docker-compose.yml."""

from ledger.database.embedded import ensure_database
from ledger.settings import Settings


def main() -> None:
    """Create it in the server of ACKLEDGER_DATABASE_URL."""
    url = Settings().database_url
    if url is None:
        raise SystemExit("ACKLEDGER_DATABASE_URL is not set: expected the server of the stack")
    ensure_database(url, "airflow")


if __name__ == "__main__":
    main()
