"""Plain Python UDFs over Parquet files, with Spark's own options: ``python -m
tests.support.plain_udf URL FOLDER``, with a ledger and a folder.

It prints what came of a batch with such a stage, and of an audit in a session of the user's own,
as one line of JSON. It ends after a time with an error that shows what it waits for.
"""

import faulthandler
import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline, audit
from ledger.settings import Settings
from ledger.spark.job import Job
from ledger.spark.session import build_session
from ledger.store.connection import Database
from tests.support.cores import rows_of
from tests.support.runner import Runner

SECONDS = 120
RECORDS = 4
EXPECTED = {"failed": 0, "sink": [[n + 1, n] for n in range(RECORDS)], "arrived": 1}


def _plus_one(column: str) -> Any:
    return F.udf(lambda n: n + 1, "long")(column)


def pipeline(copies: str) -> Pipeline:
    """Numbers, and a stage that reads files itself and has a UDF directly over them."""
    flow = Pipeline("plain")
    flow.source("numbers", FileSource("in.csv", schema="n BIGINT"))

    @flow.stage(reads="numbers")
    def with_copies(frame: Any) -> Any:
        read = frame.sparkSession.read.parquet(copies)
        return frame.join(read.select(_plus_one("copy").alias("n"), "copy"), "n", "left")

    flow.sink("out", ParquetSink("out"), reads="with_copies")
    return flow


def main(url: str, folder: Path) -> None:
    """Run the batch and the audit, and print what came of them."""
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    numbers = "".join(f"{n + 1}\n" for n in range(RECORDS))
    (folder / "in.csv").write_text(f"n\n{numbers}")
    settings = Settings(database_url=url, storage=f"{folder}/storage", data=str(folder))
    spark = build_session("plain", "local[2]")
    copies = str(folder / "copies")
    spark.range(RECORDS).toDF("copy").write.parquet(copies)
    run = Runner(Job(spark, Database(url), settings, pipeline(copies)))
    settlement = run.settled(run.open())
    # A new session has the options of Spark, and an audit reads Parquet files: copies of its input.
    own = spark.newSession().range(RECORDS)
    report = audit(lambda frame: frame.where(_plus_one("id") == RECORDS), own)
    outcome = {
        "failed": settlement.failed,
        "sink": rows_of(Path(settings.output_path("out"))),
        "arrived": report.results[0].arrived,
    }
    sys.stdout.write(json.dumps(outcome) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
