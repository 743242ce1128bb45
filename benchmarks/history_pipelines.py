"""The pipelines of a written history: four shapes in turn, so that each kind of step is there."""

from typing import Any

from ledger import FileSource, ParquetSink, Pipeline

SHAPES = 4  # records to a sink; also combined; also carried forward; whole
ORDERS = "order_id STRING, customer STRING, amount STRING"


def name_of(number: int) -> str:
    """The name of the pipeline with this number, from 1."""
    return f"shop_{number:03}"


def pipeline(number: int) -> Pipeline:
    """The pipeline with this number, from 1, as the history has it."""
    shape = number % SHAPES
    flow = Pipeline(name_of(number), max_replays=1, auto_replay=number % 3 == 0)
    path = f"{flow.name}/{{{{ interval_start | ds }}}}.csv"
    flow.source("orders", FileSource(path, schema=ORDERS), key="order_id", on_fail=_notified)

    @flow.stage(reads="orders")
    def cleaned(orders: Any) -> Any:
        return orders

    @flow.stage(reads="cleaned", anchors="merged_by_hand" if shape == 3 else "carried")
    def priced(cleaned: Any) -> Any:
        return cleaned

    flow.sink("warehouse", ParquetSink(f"{flow.name}/warehouse"), reads="priced")
    if shape == 1:

        @flow.combine(reads="priced")
        def totals(priced: Any) -> Any:
            return priced

        flow.sink("totals_table", ParquetSink(f"{flow.name}/totals"), reads="totals")
    if shape == 2:

        @flow.stateful_stage(reads="priced")
        def balance(state: Any, priced: Any) -> Any:
            return priced

        flow.sink("balance_table", ParquetSink(f"{flow.name}/balance"), reads="balance")
    return flow


def _notified(batch_id: int, records: object) -> None:
    """Notify no user: the history only records that a notification was sent."""
