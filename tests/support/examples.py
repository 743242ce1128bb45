"""The blocks of Python on the pages, and the small shop in which they run."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import ledger
from ledger import FileSource, Pipeline, testing
from tests.support.pages import PAGES, blocks
from tests.tools.example import HEADINGS

ORDER = "id STRING, customer STRING, cents BIGINT, status STRING"
ORDERS = [
    {"id": "1", "customer": "ada", "cents": 5, "status": "paid"},
    {"id": "2", "customer": "bob", "cents": -7, "status": "cancelled"},
    {"id": "3", "customer": "eve", "cents": 200_000, "status": "open"},
]
CUSTOMERS = [{"customer": "ada", "country": "GB"}, {"customer": "bob", "country": "FR"}]
# The tutorial is run by tests/acceptance/test_tutorial.py, file by file; the examples of other
# tools by make test-tools, and declared by tests/unit/test_tools.py.
EXAMPLES = {
    (block.place, block.name): block
    for page in PAGES
    for block in blocks(page, "python")
    if page.name != "tutorial.md" and block.heading not in HEADINGS.values()
}
PROOFS = {}


def proves(page, *names):
    """Register what the blocks of these names do once they have run: a function of what they
    define, and of the session.
    """

    def register(proof):
        for name in names:
            assert (page, name) in EXAMPLES, f"{page} has no block {name!r}"
            PROOFS[page, name] = proof
        return proof

    return register


def shop():
    """The pipeline that most examples belong to, as far as it is declared: source and
    reference.
    """
    pipeline = Pipeline("orders")
    pipeline.source("orders", FileSource("orders.csv", schema=ORDER))
    pipeline.reference(
        "customers", FileSource("customers.csv", schema="customer STRING, country STRING")
    )
    return pipeline


def joined(orders: DataFrame, *, customers: DataFrame) -> DataFrame:
    """The stage of the first pipeline."""
    return orders.join(customers, "customer", "inner")


joined.__name__ = "with_country"


def run(block, pipeline, **names):
    """What the block defines, run where ``made`` is the pipeline."""
    public = {name: getattr(ledger, name) for name in ledger.__all__}
    data = {"__name__": "orders", "DataFrame": DataFrame, "F": F, "pipeline": pipeline}
    labels = {**public, **data, **names}
    exec(compile(block.code, f"{block.place}: {block.name}", "exec"), labels)
    return labels


def batch(pipeline, spark, rows=ORDERS, references=CUSTOMERS, **more):
    """A batch of orders."""
    data = {"customers": references} if references else None
    return testing.run_batch(pipeline, {"orders": rows}, references=data, spark=spark, **more)


def failures(done):
    """What failed, by the order's number in ORDERS, with its reason."""
    first = min((record.message_id for record in done.failed), default=1)
    return sorted((record.message_id - first, record.step, record.reason) for record in done.failed)
