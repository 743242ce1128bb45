"""A sweeper that never rests: one of the processes that are killed."""

import logging
import time

from ledger.batch.upkeep.sweeper import sweep_once
from ledger.errors import LedgerError
from ledger.settings import Settings
from ledger.store.connection import Database

PAUSE_SECONDS = 0.3
_log = logging.getLogger("tests.chaos.sweeper")


def main() -> None:
    """Sweep until killed; a server that restarts is no reason to end."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    database = Database.from_settings(Settings())
    while True:
        try:
            swept = sweep_once(database)
        except LedgerError as exc:
            _log.warning("%s", exc)
        else:
            for settlement in swept.settlements:
                if settlement.status.decided:
                    _log.info("%s", settlement)
            for batch, error in swept.errors.items():
                _log.warning("batch %s: %s", batch, error)
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
