"""Measure a job alone and audited, and queries of TPC-H alone and with their records carried."""

import importlib
import os
import runpy
import shutil
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.measure import Bench, in_turn
from ledger.auditing.scripts.running import audit_script
from ledger.errors import CarryError
from ledger.lineage.anchors import LISTS, NUMBERS, Form
from ledger.lineage.carry import carry

ORDERS, SHOPS, LOST = 1_000_000, 1_000, 100  # one of LOST orders reaches no output
SCALE = 0.3  # of TPC-H
TRACKED = ("lineitem", "orders")
_SCRIPT = Path(__file__).with_name("audited_job.py")
_NAMES = "spark.sql.ansi.doubleQuotedIdentifiers"
FORMS: dict[str, Form] = {"numbers": NUMBERS, "lists": LISTS}


def audited(session: SparkSession, bench: Bench, rounds: int, home: Path) -> dict[str, Any]:
    """Seconds of a job over a million records alone and audited, in turn."""
    folder = home / "audited"
    _store_orders(session, folder)
    os.environ["AUDITED_HOME"] = str(folder)
    variants: dict[str, Callable[[], object]] = {
        "bare": partial(runpy.run_path, str(_SCRIPT)),
        "audited": _audit,
    }
    taken = in_turn(variants, rounds, "audited: rounds")
    medians = {name: statistics.median(values) for name, values in taken.items()}
    return {
        "audited.seconds": taken,
        "audited_over_bare": medians["audited"] / medians["bare"],
    }


def tpch(session: SparkSession, bench: Bench, rounds: int, home: Path) -> dict[str, Any]:
    """Seconds of TPC-H's queries alone and with the records of lineitem and orders carried."""
    tables, queries = _tpch(home / "tpch")
    frames = {name: session.read.parquet(str(file)) for name, file in tables.items()}
    session.conf.set(_NAMES, "true")
    figures: dict[str, Any] = {}
    ratios: dict[str, list[float]] = {form: [] for form in FORMS}
    for number, text in queries.items():
        variants: dict[str, Callable[[], object]] = {
            "bare": partial(_run, partial(_bare, session, frames, text))
        }
        try:
            for form in FORMS:
                _carried(session, frames, text, form)
                variants[form] = partial(_run, partial(_carried, session, frames, text, form))
        except CarryError:  # no row of its result comes from the two tables
            continue
        taken = in_turn(variants, rounds, f"TPC-H {number}: rounds")
        medians = {name: statistics.median(values) for name, values in taken.items()}
        figures[f"tpch.{number}.seconds"] = taken
        for form in FORMS:
            ratios[form].append(medians[form] / medians["bare"])
    session.conf.unset(_NAMES)
    figures["tpch.queries"] = len(ratios["numbers"])
    for form, values in ratios.items():
        figures[f"tpch.{form}_over_bare"] = statistics.geometric_mean(values)
    return figures


def _audit() -> None:
    """Audit the job, and require that it lost what it was made to lose."""
    copies = Path(tempfile.mkdtemp(prefix="ackledger-audit-"))
    try:
        report = audit_script(_SCRIPT, [], copies)
        str(report)
        assert report.lost_records == ORDERS // LOST, report
    finally:
        shutil.rmtree(copies)


def _store_orders(session: SparkSession, folder: Path) -> None:
    """Orders of which one in ``LOST`` has no state or an unknown shop, and the shops."""
    number = F.col("id")
    at = number % (2 * LOST)
    orders = session.range(ORDERS).select(
        number.alias("order"),
        F.when(at == 0, SHOPS).otherwise(F.abs(F.xxhash64("id")) % SHOPS).alias("shop"),
        F.when(at != LOST, "paid").alias("state"),
        (F.abs(F.xxhash64("id", F.lit(1))) % 10_000).alias("cents"),
        (number % 30).alias("day"),
        F.concat(F.lit("customer "), number % 5_000, F.lit(" of the shop")).alias("customer"),
    )
    shops = session.range(SHOPS).select(
        number.alias("shop"), F.concat(F.lit("c"), number % 20).alias("country")
    )
    for name, rows in {"orders": orders, "shops": shops}.items():
        rows.write.mode("overwrite").parquet(str(folder / name))


def _tpch(folder: Path) -> tuple[dict[str, Path], dict[int, str]]:
    """The tables of TPC-H as files, with an id for each record, and the queries by number."""
    folder.mkdir(parents=True, exist_ok=True)
    package = importlib.import_module("duckdb_extension_tpch")
    (extension,) = Path(str(package.__file__)).parent.rglob("*.duckdb_extension")
    duck = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    duck.execute(f"LOAD '{extension}'; CALL dbgen(sf={SCALE})")
    tables, first = {}, 0
    names = duck.execute("SELECT table_name FROM duckdb_tables() ORDER BY 1").fetchall()
    for (name,) in names:
        tables[name] = folder / f"{name}.parquet"
        duck.execute(
            f"COPY (SELECT *, rowid + {first} AS _anchor FROM {name}) TO '{tables[name]}'"
            " (FORMAT parquet)"
        )
        first += duck.execute(f"SELECT count(*) FROM {name}").fetchone()[0]  # type: ignore[index]
    texts = duck.execute("SELECT query_nr, query FROM tpch_queries()").fetchall()
    return tables, {number: text.strip().rstrip(";") for number, text in texts}


def _bare(session: SparkSession, frames: dict[str, DataFrame], text: str) -> DataFrame:
    for name, frame in frames.items():
        frame.drop("_anchor").createOrReplaceTempView(name)
    return session.sql(text)


def _carried(
    session: SparkSession, frames: dict[str, DataFrame], text: str, form: str
) -> DataFrame:
    names = [name for name in TRACKED if name in text]

    def query(*tracked: DataFrame) -> DataFrame:
        return _bare(session, {**frames, **dict(zip(names, tracked, strict=True))}, text)

    if not names:
        raise CarryError("the query has none of the tracked tables")
    return carry(query, [frames[name] for name in names], form=FORMS[form]).carried


def _run(make: Callable[[], DataFrame]) -> None:
    make().write.format("noop").mode("overwrite").save()
