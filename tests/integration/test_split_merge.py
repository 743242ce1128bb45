"""The classic split and merge of ``jobs/trades.py``: what a branch loses is found, and replayed
until the sums agree.
"""

from collections import Counter

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from jobs import trades
from ledger import testing
from ledger.core.states import Guarantee
from tests.support.reasons import bare
from tests.support.runner import START

SUM = sum(100 + 7 * (number % 97) for number in range(2 * trades.BATCH))


def branching(guarantee, lost=None):
    """The job's pipeline under a guarantee; a third of what the branch ``lost`` emits is not
    there.
    """
    result = trades.pipeline.with_steps(trades.pipeline.graph.steps.values())
    result.guarantee = guarantee
    if lost is not None:
        result = testing.lose_rows(lost, fraction=0.3, seed=1).wrap(result)
    return result


def snapshot(ledger):
    """What the source says that it has given."""
    statement = "SELECT claim_end FROM batch_source ORDER BY claim_number DESC NULLS LAST LIMIT 1"
    return ledger.row(statement).claim_end


@pytest.mark.parametrize("guarantee", list(Guarantee))
@pytest.mark.parametrize("lost", ["bought", "sold"])
def test_sums_agree_once_the_lost_are_replayed(runner, tmp_path, sink_rows, guarantee, lost):
    """Two batches of the endless stream; one branch of the first loses trades, each is named,
    and its replay fixes the sums of the batch and those over batches.
    """

    def come_out():
        """What the totals over batches say: trades and cents."""
        table = DeltaTable(str(tmp_path / "warehouse" / "positions")).to_pyarrow_table()
        return {name: sum(table[name].to_pylist()) for name in ("trades", "cents")}

    hurt = runner(branching(guarantee, lost))
    ledger = hurt.ledger
    first = hurt.open("first")
    settled = hurt.settled(first)
    assert 50 < settled.failed < 300
    failed = ledger.rows("SELECT step, cause, count(*) AS n FROM failed_root_detail GROUP BY 1, 2")
    assert [tuple(row) for row in failed] == [(lost, "lost", settled.failed)]
    run = runner(branching(guarantee))
    run.settled(run.open("second", START.replace(month=2), START.replace(month=3)))
    assert snapshot(ledger) == {"trades": 2 * trades.BATCH, "cents": SUM}
    assert come_out()["trades"] == 2 * trades.BATCH - settled.failed
    assert come_out()["cents"] < SUM

    assert run.settled(run.open_replay(first.batch_id)).failed == 0
    assert come_out() == snapshot(ledger)
    booked = Counter(row[0] for row in sink_rows("warehouse/trades", "trade"))
    assert booked == Counter(range(2 * trades.BATCH))
    comparison = (
        DeltaTable(str(tmp_path / "warehouse" / "comparison")).to_pyarrow_table().to_pylist()
    )
    assert len(comparison) == 2
    for batch in comparison:
        assert (batch["trades"], batch["cents"]) == (batch["booked"], batch["booked_cents"])
        assert batch["trades"] == trades.BATCH
    assert sum(batch["cents"] for batch in comparison) == SUM


def test_a_trade_of_neither_side_is_lost_in_both(spark):
    """What belongs to no branch is not dropped by anybody: it fails, by name."""
    trades_ = trades.made_up(spark, 0, 30)
    odd = trades_.withColumn("side", F.when(F.col("trade") == 7, "swap").otherwise(F.col("side")))
    result = testing.run_batch(branching(Guarantee.EXACTLY_ONCE), {"trades": odd}, spark=spark)
    assert [(failure.step, bare(failure.reason)) for failure in result.failed] == [
        ("bought", "filter: condition false: side = 'buy'")
    ]
    assert len(result.rows["booked"]) == 29
    assert result.rows["comparison"] == []
