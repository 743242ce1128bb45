"""Folders of data that Spark does not hold in memory: shuffles, and what it spills."""

import os
import sys
from collections.abc import Sequence
from typing import Any

from ledger.storage.folders import scratch_of


def scratch_folders() -> Sequence[str]:
    """Return the folders that Spark uses for this data: those of the environment, of the session
    that runs here, or else of temporary files.
    """
    return scratch_of(os.environ.get("SPARK_LOCAL_DIRS") or _local_dir())


def _local_dir() -> str | None:
    sql: Any = sys.modules.get("pyspark.sql")  # else no session runs here
    try:
        session = sql and sql.SparkSession.getActiveSession()
        folders = session and session.conf.get("spark.local.dir", None)
    except Exception:  # Spark has ended, or does not answer: its error is another's to report
        return None
    return str(folders) if folders else None
