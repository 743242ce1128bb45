"""The program that spark-submit runs, for those who point to it here: it is
``ledger/run_step.py``.
"""

import sys

from ledger.run_step import main

if __name__ == "__main__":
    sys.exit(main())
