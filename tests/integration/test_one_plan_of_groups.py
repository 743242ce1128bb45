"""Plans with whole stages, such as totals, leave the ledger and the sink's rows that their steps
leave one by one.
"""

import re

import pytest
from pyspark.sql import functions as F

from ledger import PostgresSink
from ledger.batch import one_plans
from ledger.batch.one_plans import plans_of
from ledger.batch.records.trace import Fate, trace
from ledger.errors import StageError
from ledger.execution import run_steps, settle_and_follow
from ledger.spark.job import Job
from ledger.store.queries import batches
from ledger.store.queries.one_plans import StageHistory
from tests.support.equal_sums import equal_sums, row_ids
from tests.support.order_days import (
    ORDERS,
    STRANGE,
    Lying,
    add_customers,
    copies,
    orders,
    plans,
    published,
    same,
    swapped,
    without,
    write_day,
)
from tests.support.order_days import ended as ended_by
from tests.support.order_totals import KINDS, STEPS, alone, pipeline, sums
from tests.support.runner import Runner

GOOD = {step: StageHistory(step, False, 0, ORDERS) for step in STEPS}
WHOLE = ("totals", "named")


@pytest.fixture
def days(tmp_path):
    """A day without losses, then one with them, then an empty one."""
    write_day(tmp_path, 1, orders())
    write_day(tmp_path, 2, orders(*STRANGE))
    write_day(tmp_path, 3, [])


@pytest.fixture
def history(monkeypatch):
    """A batch before the first one, in which nothing was lost, multiplied or refused."""
    monkeypatch.setattr(one_plans, "history_of", lambda connection, batch: GOOD)


def ended(run, day):
    """Run a day, and return what the ledger has of it, and the day's rows in the sink."""
    return ended_by(run, day, by="customer")


def rejected(run):
    """Return why the plan was rejected."""
    return run.ledger.row("SELECT rejected FROM one_plan").rejected


_SINGLE = {}


def single(runner, kind=sums, day=1):
    """Return what a day leaves if its steps run one by one. It is run once."""
    key = kind.__name__, day
    if key not in _SINGLE:
        _SINGLE[key] = ended(runner(alone(kind)), day)
    return _SINGLE[key]


@pytest.mark.parametrize("day", [0, 1, 2], ids=["nothing lost", "losses", "nothing read"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_has_the_verdicts_of_its_steps(runner, days, history, kind, day):
    """A plan with a whole stage leaves the ledger and sink of single steps, if the orders that do
    not reach the sink end before that stage.
    """
    run = runner(pipeline(KINDS[kind]))
    as_plan = ended(run, day)
    assert plans(run) == [(STEPS, False)]
    assert as_plan == single(runner, KINDS[kind], day)
    failures, _, _, rows = as_plan
    assert set(failures) == ({5, 8, 13, 21} if day == 1 else set())
    assert bool(rows) == (day < 2)


def test_a_clean_batch_writes_only_the_sink_s_files(runner, days):
    """After a first batch of single steps, no stage has files. ``trace`` says where rows went."""
    run = runner(pipeline(sums))
    ended(run, 0)
    assert plans(run) == []
    batch = run.open_day(1)
    run_steps(run.job, batch.batch_id, lambda *_: None)
    assert plans(run) == [(STEPS, False)]
    files = run.ledger.rows(
        "SELECT step, sum(rows) AS rows FROM step_run_file JOIN step_run USING (step_run_id)"
        " WHERE one_plan_id IS NOT NULL AND step <> 'checked' AND step <> 'with_country'"
        " GROUP BY step"
    )
    assert [(row.step, row.rows) for row in files] == [("out", 8)]
    first = run.ledger.row("SELECT max(first_root) AS root FROM batch_source").root
    branches, fates = trace(run.job.database, first).tree.branches, []
    while branches:
        (branch,) = branches
        fates.append((branch.step, branch.fate))
        branches = branch.branches
    assert fates == [*((step, Fate.PASSED_ON) for step in STEPS[:-1]), ("out", Fate.ACKED)]
    whole = run.ledger.rows("SELECT name FROM batch_step WHERE batch_id = 2 AND merges")
    assert {row.name for row in whole} == set(WHOLE)


def test_a_replay_replaces_the_totals_of_a_plan(runner, days, history, tmp_path):
    """A total lacks an order that a stage before it lost, until the replay of the whole batch."""
    run = runner(pipeline(sums))
    rows = ended(run, 1)[-1]
    assert plans(run) == [(STEPS, False)]
    add_customers(tmp_path, "77,PT\n")
    replay = run.open_replay(1)
    run_steps(run.job, replay.batch_id, lambda *_: None)
    settle_and_follow(run.job, replay.batch_id)
    more = {"customer": 77, "orders": 1, "cents": 13, "last": 13, "name": "c77"}
    assert published(run, replay.batch_id, "customer") == [*rows, more]
    assert published(run, 1, "customer") == []


def lost_at_first(folder):
    """Leave order 200 out when rows are computed for the first time."""

    def changed(rows):
        path = folder / "computed"

        def is_there(number):
            if number != 200 or path.exists():
                return True
            path.touch()
            return False

        return rows.where(F.udf(is_there, "boolean")("id"))

    return changed


def of_customers(numbers):
    """Rows of which those of some customers come another number of times than once."""
    return lambda rows: copies(numbers)(rows.withColumn("id", F.col("customer"))).drop("id")


LIES = {
    "lost before the group": {"totals": [without(200)]},
    "one lost, one doubled before the group": {"totals": [swapped]},
    "doubled before the group": {"totals": [copies({201: 2})]},
    # An odd number of times, so that XOR is as it was.
    "tripled before the group": {"totals": [copies({201: 3})]},
    "two lost, one tripled": {"totals": [copies({200: 0, 202: 0, 201: 3})]},
    # It was counted behind the first stage, which the second time it does not reach.
    "lost at another place": {"checked": [same, without(200)], "with_country": [without(200)]},
    "lost and failed": {"checked": [same, without(8)]},
    "a total lost": {"named": [of_customers({3: 0})]},
    "a total doubled": {"named": [of_customers({3: 2})]},
    "a total tripled": {"named": [of_customers({3: 3})]},
    "one total lost, one doubled": {"named": [of_customers({3: 0, 4: 2})]},
    # The sink has each record once, but one of the two rows was lost.
    "a total doubled, and one of the two lost": {
        "named": [of_customers({3: 2})],
        "out": [lambda rows: rows.dropDuplicates(["customer"])],
    },
    "a total lost before the sink": {"out": [of_customers({3: 0})]},
    "a total tripled before the sink": {"out": [of_customers({3: 3})]},
    "one total lost, one doubled before the sink": {"out": [of_customers({3: 0, 4: 2})]},
}


@pytest.mark.parametrize("lie", LIES)
def test_what_is_not_explained_is_rejected(runner, days, history, lie):
    """A plan counts only if the records of all rows behind the group are those that reached it."""
    run = runner(pipeline(sums), on_read=Lying(**LIES[lie]))
    result = ended(run, 1)
    assert plans(run) == [(STEPS, True)]
    assert result == single(runner)


@pytest.mark.parametrize("step", ["with_country", "totals"])
def test_an_order_that_is_lost_only_the_first_time(runner, days, history, tmp_path, step):
    """The rows that reach a group are computed again to know which did not. They have to be the
    rows that the group got.
    """
    run = runner(pipeline(sums), on_read=Lying(**{step: [lost_at_first(tmp_path)]}))
    result = ended(run, 1)
    assert plans(run) == [(STEPS, True)]
    assert result == single(runner)


class OfEqualSums:
    """Lose three orders before the group, and double three others with an equal sum of hashes."""

    def __init__(self, run):
        self._run, self.has_lied = run, False

    def __call__(self, step, rows):
        if step != "totals" or self.has_lied:
            return rows
        self.has_lied = True
        first = self._run.ledger.row("SELECT first_root FROM batch_source").first_root
        lost, doubled = equal_sums(row_ids(first, ORDERS))
        place = F.col("_ackledger_position")
        times = F.when(place.isin(*lost), 0).when(place.isin(*doubled), 2).otherwise(1)
        return rows.withColumn("n", F.explode(F.array_repeat(F.lit(1), times))).drop("n")


def test_a_lie_that_only_the_xor_shows(runner, days, history):
    """Other orders than those that reached the group, with equal count and sum."""
    flow = pipeline(sums)
    lying = OfEqualSums(runner(flow))
    run = runner(flow, on_read=lying)
    result = ended(run, 0)
    assert lying.has_lied
    assert plans(run) == [(STEPS, True)]
    assert result == single(runner, day=0)


def large(orders):
    """Keep the totals above a number: orders end at the whole stage."""
    return sums(orders).where("cents > 11300")


def words(orders):
    """Count the words of each status: an order with two words is in two groups."""
    word = F.explode(F.split("status", " "))
    return orders.select("customer", word.alias("word")).groupBy("customer", "word").count()


def joined(orders):
    """Give each order the total of its customer."""
    totals = orders.groupBy("customer").agg(F.sum("cents").alias("total"))
    return orders.join(totals, "customer").select("customer", "id", "total").where("id < 7")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (large, "400 records reached stage 'totals', .* and [0-9]+ are behind 'totals'"),
        (joined, "rows of stage '[a-z_]+' are not read once"),
    ],
)
def test_what_ends_at_a_group_is_rejected(runner, days, history, kind, reason):
    """A second run of the orders that ended there would group other orders."""
    run = runner(pipeline(kind))
    result = ended(run, 0)
    assert plans(run) == [(STEPS, True)]
    assert re.match(reason, rejected(run))
    assert result == single(runner, kind, 0)
    assert len(result[-1]) < ORDERS


def test_words_are_counted_one_by_one(runner, tmp_path, history):
    """An order with two words is twice behind the stage, so its row ids are not those of the input;
    with one word each, the plan is accepted.
    """
    two = [(number, {"status": "paid twice"}) for number in range(0, 40, 4)]
    for day, some in ((1, ()), (2, two)):
        write_day(tmp_path, day, orders(*some))
    run = runner(pipeline(words))
    results = [ended(run, day) for day in (0, 1)]
    assert plans(run) == [(STEPS, False), (STEPS, True)]
    why = run.ledger.row("SELECT rejected FROM one_plan WHERE rejected IS NOT NULL").rejected
    assert "400 records reached stage 'totals'" in why
    assert "410 are behind 'totals'" in why
    assert results == [single(runner, words, day) for day in (0, 1)]


def test_a_total_that_fails(runner, days, history):
    """All orders of a failed total fail, which only their lists can name."""

    def named(totals):
        return totals.withColumn("_failed", F.when(F.col("customer") == 3, "three"))

    run = runner(pipeline(sums, named=named))
    result = ended(run, 0)
    assert plans(run) == [(STEPS, True)]
    assert result == ended(runner(alone(sums, named=named)), 0)
    assert len(result[0]) == 57


def test_groups_of_any_size(runner, days, history):
    """A row within a plan has numbers of its records, and no list that has a limit."""
    run = runner(pipeline(sums, max_anchors=10))
    failures, _, _, rows = ended(run, 0)
    assert plans(run) == [(STEPS, False)]
    assert (failures, rows) == (single(runner, day=0)[0], single(runner, day=0)[-1])
    one_by_one = runner(alone(sums, name="limited", max_anchors=10))
    batch = one_by_one.open_day(0)
    with pytest.raises(StageError, match="a row of 58 records, max_anchors is 10"):
        run_steps(one_by_one.job, batch.batch_id, lambda *_: None)


def test_lost_records_need_lists(runner, days, history):
    """The replay of a record that was lost before the group groups all records again, step by step,
    so a row has no more records than a list may have.
    """
    run = runner(pipeline(sums, max_anchors=10))
    batch = run.open_day(1)
    with pytest.raises(StageError, match="max_anchors is 10"):
        run_steps(run.job, batch.batch_id, lambda *_: None)
    assert re.search("a row of [0-9]+ records, max_anchors is 10, and a replay", rejected(run))


@pytest.mark.parametrize("refuses", [False, True])
def test_totals_in_a_table(runner, days, history, warehouse, refuses):
    """A sink whose staged files say which records a row comes from. If the table refuses a row, all
    orders of the total fail, which only their list can name.
    """
    results = []
    for flow in (pipeline, alone):
        name = flow.__name__
        check = " CHECK (customer <> 3)" if refuses else ""
        warehouse.do(
            f"CREATE TABLE {name} (customer bigint{check}, orders bigint, cents bigint,"
            " last bigint, name text, ackledger_batch bigint NOT NULL)"
        )
        run = runner(flow(sums, sink=PostgresSink(warehouse.url, name)))
        batch = run.open_day(0)
        run_steps(run.job, batch.batch_id, lambda *_: None)
        settle_and_follow(run.job, batch.batch_id)
        failures = run.ledger.rows(
            "SELECT step, cause, count(*) AS records FROM failed_root WHERE batch_id = :b"
            " GROUP BY step, cause",
            b=batch.batch_id,
        )
        rows = warehouse.rows(f"SELECT customer, orders, cents, last, name FROM {name} ORDER BY 1")
        results.append(([tuple(row) for row in failures], rows))
    assert plans(run) == [(STEPS, refuses)]
    assert results[0] == results[1]
    assert results[0][0] == ([("out", "refused", 57)] if refuses else [])
    assert len(results[0][1]) == (6 if refuses else 7)


def test_the_total_of_no_rows(runner, days, history):
    """It comes from no record: the stage says so by itself."""

    def total(orders):
        return orders.groupBy().agg(F.sum("cents").alias("customer"))

    run = runner(pipeline(total))
    batch = run.open_day(2)
    with pytest.raises(StageError, match="the total of no rows"):
        run_steps(run.job, batch.batch_id, lambda *_: None)
    assert "come from no record" in rejected(run)


def test_a_plan_that_ends_with_a_group(runner, days):
    """Two sinks read the rows behind the plan: the group writes a list of each row's records."""
    run = runner(pipeline(sums, beside=True))
    results = [ended(run, day) for day in (0, 1)]
    assert plans(run) == [(STEPS[:3], False)]
    one_by_one = runner(alone(sums, beside=True))
    assert results == [ended(one_by_one, day) for day in (0, 1)]


@pytest.fixture
def tried_of(days, database, settings, monkeypatch):
    """Names of the steps of each plan that the first batch of a pipeline may run, whose third stage
    is known to be whole.
    """

    def tried_of(flow, histories):
        monkeypatch.setattr(one_plans, "history_of", lambda connection, batch: histories)
        run = Runner(Job(None, database, settings, flow))
        batch = run.open_day(0)

        def note_whole(connection):
            steps = flow.with_whole(["totals"]).topology()
            version = batches.declare_steps(connection, batch.pipeline_id, steps)
            batches.set_steps(connection, batch.batch_id, version)

        database.transact(note_whole)
        planned = plans_of(database, flow, batch.batch_id)
        return [steps.names for steps in planned]

    return tried_of


def another(**changed):
    """The history with other counts of one step."""
    return {**GOOD, **{step: StageHistory(step, *counts) for step, counts in changed.items()}}


TRIED = {
    "nothing ended": (GOOD, [STEPS]),
    "a record ended at the group": (another(totals=(False, 1, ORDERS)), [STEPS[:2]]),
    "a record ended behind it": (another(named=(False, 1, 7)), [STEPS[:3]]),
    "a stage multiplied before it": (another(with_country=(True, 0, ORDERS)), [STEPS[:2]]),
}


@pytest.mark.parametrize("case", TRIED)
def test_where_a_plan_ends(tried_of, case):
    """Nothing may end from the group on, and a row behind it begins no plan."""
    histories, expected = TRIED[case]
    assert tried_of(pipeline(sums), histories) == expected


def test_a_plan_without_the_sink_ends_with_its_first_group(tried_of):
    """A row behind it has several records, which only a file can name."""
    assert tried_of(pipeline(sums, beside=True), GOOD) == [STEPS[:3]]


def test_what_ended_at_a_group_is_learned(runner, days):
    """The next batch goes as far as the stage before it."""
    run = runner(pipeline(large))
    ended(run, 0)
    ended(run, 1)
    assert plans(run) == [(STEPS[:2], False)]
