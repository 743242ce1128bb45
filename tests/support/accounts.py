"""Entries of accounts, day by day: a state over batches in both of its forms, and its oracle."""

import json
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ledger import DeltaSink, FileSource, ParquetSink, Pipeline, StatefulStage

COUNT = 6
LATE = (2, 4)  # day and number of an entry that is lost until the stage is fixed
FUNCTION, FILES = "function", "files"
STATE = "account STRING, cents BIGINT, days STRING"

State = set[tuple[str, int, str]]


def pipeline(folder: str, form: str, *, fixed: bool = False) -> Pipeline:
    """entries -> checked, which loses some until it is fixed -> a folder, and by account what
    came up to now.

    ``form``: the state is a function's, or kept by an object in files of its own.
    """
    flow = Pipeline("accounts", guarantee="exactly_once", message_timeout="10s")
    flow.source(
        "entries",
        FileSource(
            "{{ interval_start | ds }}.csv",
            schema="day INT, entry INT, account STRING, cents BIGINT",
        ),
    )

    @flow.stage(reads="entries", filters="lost")
    def checked(entries: DataFrame) -> DataFrame:
        day, number = LATE
        late = (F.col("day") == day) & (F.col("entry") == number)
        return entries.where(F.lit(fixed) | ~late)

    if form == FUNCTION:

        @flow.stateful_stage(reads="checked")
        def balance(state: DataFrame | None, batch: DataFrame) -> DataFrame:
            new = of_batch(batch)
            if state is None:
                return new
            before = state.select(
                "account", F.col("cents").alias("had"), F.col("days").alias("seen")
            )
            return new.join(before, "account", "full").select(
                "account",
                (F.coalesce("cents", F.lit(0)) + F.coalesce("had", F.lit(0))).alias("cents"),
                F.concat_ws(" ", "seen", "days").alias("days"),
            )

    else:
        flow.stateful("balance", Book(Path(folder) / "book"), reads="checked")
    flow.sink("entered", ParquetSink("entered"), reads="checked")
    flow.sink("balances", DeltaSink("balances"), reads="balance")
    return flow


def of_batch(batch: DataFrame) -> DataFrame:
    """By account the sum of a batch, and its day: the days of a state are the batches that it
    includes.
    """
    return batch.groupBy("account").agg(
        F.sum("cents").alias("cents"), F.concat_ws(" ", F.collect_set("day")).alias("days")
    )


class Book(StatefulStage):
    """The same state as a page of JSON for each batch; the ledger has the page's name."""

    def __init__(self, folder: Path):
        self._folder = folder

    def init_state(self, snapshot: Any) -> None:
        """Open the book at a page."""
        self._accounts: dict[str, list[Any]] = {}
        if snapshot is not None:
            self._accounts = json.loads((self._folder / snapshot["page"]).read_text())

    def finish_batch(self, batch_id: int, batch: DataFrame) -> dict[str, list[Any]]:
        """Enter a batch."""
        for row in of_batch(batch).collect():
            cents, days = self._accounts.get(row.account, (0, ""))
            self._accounts[row.account] = [cents + row.cents, f"{days} {row.days}".strip()]
        return self._accounts

    def rows(self, state: dict[str, list[Any]]) -> DataFrame:
        """What the page says."""
        spark = SparkSession.getActiveSession()
        assert spark is not None
        return spark.createDataFrame([(name, *values) for name, values in state.items()], STATE)

    def commit(self, batch_id: int, state: dict[str, list[Any]]) -> dict[str, str]:
        """Write a new page beside the others."""
        page = f"{batch_id}.json"
        self._write(page, json.dumps(state))
        return {"page": page}

    def roll_back(self, snapshot: Any) -> None:
        """Tear out what was written behind a page."""
        last = 0 if snapshot is None else int(snapshot["page"].partition(".")[0])
        self._forget(number for number in self.numbers if number > last)

    def ack_commit(self, batch_id: int) -> None:
        """The pages before this batch's are not needed any more."""
        self._forget(number for number in self.numbers if number < batch_id)

    @property
    def numbers(self) -> list[int]:
        """The batches of which there is a page."""
        return sorted(int(path.stem) for path in self._folder.glob("*.json"))

    def _write(self, page: str, text: str) -> None:
        self._folder.mkdir(exist_ok=True)
        (self._folder / page).write_text(text)

    def _forget(self, numbers: Iterable[int]) -> None:
        for number in list(numbers):
            (self._folder / f"{number}.json").unlink()


def write(folder: Path) -> None:
    """Two days of entries."""
    for day in (1, 2):
        lines = [",".join(map(str, entry)) for entry in entries(day)]
        path = folder / f"{date(2013, 1, day)}.csv"
        path.write_text("day,entry,account,cents\n" + "\n".join(lines) + "\n")


def entries(day: int) -> list[tuple[int, int, str, int]]:
    """(day, entry, account, cents)."""
    return [(day, number, f"a{number % 3}", 100 * day + number) for number in range(COUNT)]


def expected(*batches: tuple[int, bool]) -> State:
    """The state after these batches: of each its day, and whether it is the replay of what was
    lost.
    """
    balances: dict[str, tuple[int, list[int]]] = {}
    for day, replay in batches:
        taken = [entry for entry in entries(day) if (entry[:2] == LATE) == replay]
        for account in {entry[2] for entry in taken}:
            cents, days = balances.get(account, (0, []))
            new = sum(entry[3] for entry in taken if entry[2] == account)
            balances[account] = (cents + new, [*days, day])
    return {(name, cents, " ".join(map(str, days))) for name, (cents, days) in balances.items()}
