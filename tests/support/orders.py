"""Orders of shops, packed in boxes: a pipeline with all that can fail, three kinds of sinks, and
its oracle.
"""

import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger import DeltaSink, FailedRecord, FileSource, ParquetSink, Pipeline, PostgresSink, Upsert

COUNT = 200
MOST_SPANS = 13  # so their runs leave files of single roots, and settlements read them
UNREADABLE = frozenset({20, 90, 150})  # lines that do not parse
HOMELESS = frozenset({13, 63, 113, 163})  # of a shop that the reference lacks until it is fixed
BROKEN = frozenset({38, 101, 176})  # the second of three boxes fails until the stage is fixed
SINKS = ("lake", "report", "table")

Rows = Counter[tuple[object, ...]]


@dataclass(frozen=True)
class Variant:
    """How the pipeline is declared. ``fixed``: its stage fails nothing more. ``deadly``: a
    process that the record stage kills, in the midst of its work; ``marker``: where that is
    noted.
    """

    fixed: bool = False
    mode: str = "append"
    guarantee: str = "exactly_once"
    dedup: str = "none"
    sinks: tuple[str, ...] = SINKS
    deadly: int | None = None
    marker: str = ""


def pipeline(folder: str, warehouse: str, variant: Variant) -> Pipeline:
    """orders -> boxes, by the shops -> priced -> a folder, a Delta table, a table; totals -> a
    folder.
    """
    once = variant.guarantee == "exactly_once"
    flow = Pipeline("shop", guarantee=variant.guarantee, max_replays=1, message_timeout="10s")
    source = FileSource("orders.csv", schema="id INT, shop STRING, items INT")

    if once:
        flow.source(
            "orders",
            source,
            on_ack=lambda batch_id, messages: note(folder, "acked", batch_id, messages),
            on_fail=lambda batch_id, messages: note(folder, "failed", batch_id, messages),
        )
    else:
        flow.source("orders", source)
    flow.reference("shops", FileSource("shops.csv", schema="shop STRING, city STRING"))

    @flow.stage(reads="orders", anchors="by_hand")
    def boxes(orders: DataFrame, *, shops: DataFrame) -> DataFrame:
        packed = orders.join(shops, "shop", "inner")
        box = F.explode(F.sequence(F.lit(1), "items")).alias("box")
        return packed.select("id", "shop", box, "_anchor")

    broken = frozenset() if variant.fixed else BROKEN
    deadly, marker = variant.deadly, variant.marker

    @flow.record_stage(reads="boxes", schema="id INT, shop STRING, box INT, cents INT")
    def priced(record: dict[str, Any]) -> Any:
        if deadly is not None and record["id"] == 170:
            from tests.support.orders import die  # where the executors of tests may not find it

            die(deadly, marker)
        if record["id"] in broken and record["box"] == 2:
            raise FailedRecord("crushed")
        yield {**record, "cents": 100 * record["id"] + record["box"]}

    sinks = {
        "lake": ParquetSink("lake", partition_by="shop", dedup=variant.dedup),
        "report": PostgresSink(
            warehouse,
            "report",
            mode=Upsert(("id", "box")) if variant.mode == "upsert" else variant.mode,
            dedup=variant.dedup,
        ),
        "table": DeltaSink("table", dedup=variant.dedup),
    }
    for name in variant.sinks:
        flow.sink(name, sinks[name], reads="priced")
    if once:

        @flow.combine(reads="priced")
        def totals(priced: DataFrame) -> DataFrame:
            return priced.groupBy("shop").agg(
                F.count("*").alias("boxes"), F.sum("cents").alias("cents")
            )

        flow.sink("daily", ParquetSink("daily"), reads="totals")
    return flow


def note(folder: str, kind: str, batch_id: int, messages: DataFrame) -> None:
    """One line for each time that the source is notified."""
    ids = sorted(row["id"] or 0 for row in messages.select("record.id").collect())
    with (Path(folder) / "notices.txt").open("a") as lines:
        lines.write(f"{batch_id} {kind} {' '.join(map(str, ids))}\n")


def write(folder: Path, *, fixed: bool = False) -> None:
    """The source's file, and the reference without one shop until it is fixed."""
    if not (folder / "orders.csv").exists():
        lines = [",".join(map(str, _line(number))) for number in range(COUNT)]
        (folder / "orders.csv").write_text("id,shop,items\n" + "\n".join(lines) + "\n")
    shops = [f"s{number},Bonn" for number in range(5)] + (["new,Ulm"] if fixed else [])
    (folder / "shops.csv").write_text("shop,city\n" + "\n".join(shops) + "\n")


def expected(*, fixed: bool) -> Rows:
    """What each sink is to hold: (id, shop, box, cents) of the records that are good."""
    gone = UNREADABLE if fixed else UNREADABLE | HOMELESS | BROKEN
    counts: Rows = Counter()
    for number in range(COUNT):
        if number not in gone:
            _, shop, items = _line(number)
            counts.update(
                (number, shop, box, 100 * number + box) for box in range(1, int(items) + 1)
            )
    return counts


def totals(rows: Rows) -> Rows:
    """(shop, boxes, cents) over rows."""
    boxes: Counter[object] = Counter()
    cents: Counter[object] = Counter()
    for (_, shop, _, price), count in rows.items():
        boxes[shop] += count
        cents[shop] += count * int(str(price))
    return Counter((shop, boxes[shop], cents[shop]) for shop in boxes)


def _line(number: int) -> tuple[object, str, int]:
    name = f"x{number}" if number in UNREADABLE else number
    shop = "new" if number in HOMELESS else f"s{number % 5}"
    return name, shop, 3 if number in BROKEN else 1 + number % 3


def die(process: int, marker: str) -> None:
    """Note that the point was reached, then kill a process: this one, or the driver of this
    executor.
    """
    with open(marker, "a") as lines:
        lines.write(f"{process}\n")
    os.kill(process, signal.SIGKILL)
    time.sleep(60)
