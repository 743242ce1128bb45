"""Lawful drops, explicit acks and fails, one row for an input, and stages of single records."""

import json
from collections import Counter
from datetime import date, datetime
from decimal import Decimal

import pytest
from pyspark.sql import functions as F

from ledger import FailedRecord, FileSource, ParquetSink, Pipeline, acked, dropped, failed
from ledger.batch.holds import preview_of
from ledger.errors import DeclarationError, StageError
from tests.support.reasons import bare

COUNT = 30
DROPS = "SELECT step, reason, records FROM step_drops ORDER BY reason"
FAILED = "SELECT step, reason, count(*) FROM failed_root_detail GROUP BY 1, 2 ORDER BY 2"


def piped(tmp_path, declare, fan_in=1):
    """numbers -> [twice ->] the declared stage -> out, over 0 .. COUNT - 1."""
    (tmp_path / "in.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(COUNT)))
    pipeline = Pipeline("marks", max_replays=1)
    pipeline.source("numbers", FileSource("in.csv", schema="n INT"))

    @pipeline.stage(reads="numbers")
    def copies(frame):
        return frame.withColumn("copy", F.explode(F.array(*map(F.lit, range(fan_in)))))

    name = declare(pipeline)
    pipeline.sink("out", ParquetSink("out"), reads=name)
    return pipeline


def framed(function, **options):
    """Declare a stage of frames."""

    def declare(pipeline):
        pipeline.stage(reads="copies", **options)(function)
        return function.__name__

    return declare


def recorded(function, schema="n INT, twice INT", **options):
    """Declare a stage of records."""

    def declare(pipeline):
        pipeline.record_stage(reads="copies", schema=schema, **options)(function)
        return function.__name__

    return declare


def failures(run):
    return [(step, bare(reason), count) for step, reason, count in run.ledger.rows(FAILED)]


@pytest.mark.parametrize("fan_in", [1, 3])
def test_lawful_drops_are_acked_and_counted(runner, tmp_path, sink_rows, fan_in, folded_by):
    """A drop is an ack with a reason code: the record is complete, and the ledger counts it by
    step and reason.
    """

    def sift(frame):
        return (
            frame.where("n % 3 = 0"),
            dropped(frame.where("n % 3 = 1"), "one too many"),
            dropped(frame.where("n % 3 = 2"), "one too few"),
        )

    run = runner(piped(tmp_path, framed(sift), fan_in))
    assert run.settled(run.open()).failed == 0
    assert [row[0] for row in sink_rows("out", "n")] == sorted(
        [*range(0, COUNT, 3)] * fan_in, key=str
    )
    rows = [tuple(row) for row in run.ledger.rows(DROPS)]
    assert rows == [("sift", "one too few", 10 * fan_in), ("sift", "one too many", 10 * fan_in)]


def test_emitted_and_dropped_or_dropped_twice_is_acked_once(runner, tmp_path, sink_rows, folded_by):
    """A record both emitted and dropped is emitted; one dropped twice is acked once and counted
    once.
    """

    def sift(frame):
        return frame.where("n < 10"), dropped(frame, "all"), dropped(frame.where("n > 20"), "big")

    run = runner(piped(tmp_path, framed(sift)))
    assert run.settled(run.open()).failed == 0
    assert len(sink_rows("out", "n")) == 10
    assert sum(row.records for row in run.ledger.rows(DROPS)) == COUNT - 10


def test_what_is_neither_emitted_nor_dropped_is_lost(runner, tmp_path):
    """Beside drops, a record that is mentioned nowhere is still found."""

    def sift(frame):
        return frame.where("n < 10"), dropped(frame.where("n >= 12"), "big")

    run = runner(piped(tmp_path, framed(sift, filters="lost")))
    assert run.settled(run.open()).failed == 2
    assert failures(run) == [("sift", "filter: condition false: n < 10", 2)]


@pytest.mark.parametrize("fan_in", [1, 3])
def test_a_filter_drops_what_no_mark_names(runner, tmp_path, sink_rows, fan_in, folded_by):
    """Rows in no mark are dropped by the operation that left them out, if that is intended, and
    are lost otherwise; rows in a mark are counted with its reason alone.
    """

    def sift(frame):
        even = frame.where("n < 10 AND (n <> 5 OR null)")
        return even, dropped(frame.where("n >= 12"), "big"), failed(frame.where("n = 11"), "odd")

    run = runner(piped(tmp_path, framed(sift), fan_in))
    assert run.settled(run.open()).failed == 2
    null = "filter: condition NULL: (NOT (n = 5)) OR CAST(NULL AS BOOLEAN)"
    assert failures(run) == [("sift", null, 1), ("sift", "odd", 1)]
    drops = [(step, bare(reason), count) for step, reason, count in run.ledger.rows(DROPS)]
    assert drops == [
        ("sift", "big", (COUNT - 12) * fan_in),
        ("sift", "filter: condition false: n < 10", fan_in),
    ]
    assert len(sink_rows("out", "n")) == 9 * fan_in


def test_on_read_counts_what_it_swallowed(runner, tmp_path):
    """A stage that acks on read loses nothing by definition; the ledger counts the inputs
    without an output.
    """

    def sift(frame):
        return frame.where("n < 10"), dropped(frame.where("n = 20"), "twenty")

    run = runner(piped(tmp_path, framed(sift, acks="on_read"), 2))
    assert run.settled(run.open()).failed == 0
    rows = [tuple(row) for row in run.ledger.rows(DROPS)]
    assert rows == [("sift", "no output", 2 * (COUNT - 11)), ("sift", "twenty", 2)]


def test_stages_that_only_a_combine_reads(runner, tmp_path):
    """A stage whose rows go to no tracked step names a repeated input, and what it swallowed,
    all the same.
    """
    (tmp_path / "in.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(COUNT)))
    pipeline = Pipeline("marks")
    pipeline.source("numbers", FileSource("in.csv", schema="n INT"))

    @pipeline.stage(reads="numbers", emits="one")
    def doubled(frame):
        return frame.unionByName(frame.where("n < 3"))

    @pipeline.stage(reads="numbers", acks="on_read")
    def sifted(frame):
        return frame.where("n < 10")

    @pipeline.combine(reads=["doubled", "sifted"])
    def total(first, other):
        return first.select("n").unionByName(other.select("n")).groupBy().count()

    pipeline.sink("out", ParquetSink("out"), reads="total")
    run = runner(pipeline)
    assert run.settled(run.open()).failed == 3
    assert failures(run) == [("doubled", "more than one row for an input", 3)]
    assert [tuple(row) for row in run.ledger.rows(DROPS)] == [("sifted", "no output", COUNT - 10)]


def test_explicit_acks(runner, tmp_path, sink_rows, folded_by):
    """With explicit acks, outputs, acks and fails count; what is mentioned nowhere fails as not
    acked by the stage.
    """

    def judge(frame):
        return (
            frame.where("n < 10"),
            acked(frame.where("n BETWEEN 10 AND 14")),
            failed(frame.where("n BETWEEN 15 AND 17"), "no good"),
        )

    run = runner(piped(tmp_path, framed(judge, acks="explicit")))
    batch = run.open()
    assert run.settled(batch).failed == 15
    assert failures(run) == [("judge", "no good", 3), ("judge", "not acked by judge", 12)]
    assert len(sink_rows("out", "n")) == 10
    assert run.ledger.rows(DROPS) == []


@pytest.mark.parametrize(
    ("fan_in", "acks"), [(1, "on_emit"), (2, "on_emit"), (1, "on_read"), (2, "on_read")]
)
def test_emits_one_names_a_repeated_input(runner, tmp_path, fan_in, acks):
    """With emits="one" a record of which an input has two rows fails by name, whatever acks it."""

    def repeat(frame):
        times = F.when(F.col("n") < 3, 2).otherwise(1)
        return frame.withColumn("copy", F.explode(F.sequence(F.lit(1), times)))

    run = runner(piped(tmp_path, framed(repeat, acks=acks, emits="one"), fan_in))
    assert run.settled(run.open()).failed == 3
    assert failures(run) == [("repeat", "more than one row for an input", 3)]


def test_a_record_that_fails_and_is_repeated(runner, tmp_path, folded_by):
    """A reason that the stage gave says more than that it repeated the record, though it is of
    another input, in a file that another task folds.
    """

    def repeat(frame):
        times = F.when(F.col("n") == 3, 2).otherwise(1)
        first = frame.where("n < 3 OR n = 3 AND copy = 0")
        second = frame.where("n > 3 OR n = 3 AND copy = 1")
        repeated = second.withColumn("copy", F.explode(F.sequence(F.lit(1), times)))
        failing = first.withColumn("_failed", F.when(F.col("n") == 3, "zzz"))
        return failing.unionByName(repeated, allowMissingColumns=True)

    run = runner(piped(tmp_path, framed(repeat, emits="one"), 2))
    assert run.settled(run.open()).failed == 1
    assert failures(run) == [("repeat", "zzz", 1)]


@pytest.mark.parametrize(
    ("marks", "message"),
    [
        (lambda frame: (frame, frame), "returned DataFrame beside its output"),
        (lambda frame: (frame, acked(frame)), 'needs acks="explicit"'),
        (
            lambda frame: (frame, dropped(frame.select("n"), "x")),
            r"dropped\(...\) without '_anchor'",
        ),
        (lambda frame: (1, dropped(frame, "x")), "returned int, expected a DataFrame"),
    ],
)
def test_marks_that_are_none(runner, tmp_path, marks, message):
    """A mark that cannot be one is refused, naming the stage and what was expected."""

    def wrong(frame):
        return marks(frame)

    run = runner(piped(tmp_path, framed(wrong, anchors="by_hand")))
    with pytest.raises(StageError, match=message):
        run.steps(run.open())


def test_record_stage(runner, tmp_path, sink_rows):
    """A record's outputs are anchored for it; a raise fails just that record and discards what
    it had yielded.
    """

    def double(record):
        yield {"n": record["n"], "twice": record["n"] * 2}
        if record["n"] == 5:
            raise FailedRecord("five")
        if record["n"] == 6:
            raise ValueError("six")
        if record["n"] == 7:
            yield {"n": 7, "thrice": 21}
        if record["n"] == 8:
            yield {"n": "eight"}
        if record["n"] == 9:
            yield 9
        if record["n"] == 10:
            yield {"n": 10, "twice": 20}
        if record["n"] == 11:
            yield {"n": 2**70}

    run = runner(piped(tmp_path, recorded(double)))
    assert run.settled(run.open()).failed == 6
    reasons = dict(row[1:] for row in failures(run))
    assert {"five", "ValueError: six"} < set(reasons)
    assert "TypeError: yielded column 'thrice', the schema has n, twice" in reasons
    assert "TypeError: yielded int, expected a dict or dropped(reason)" in reasons
    assert "yielded n: expected int, found eight" in reasons
    assert f"yielded n: expected int, found {2**70}" in reasons
    expected = Counter((n, n * 2) for n in range(COUNT) if n not in (5, 6, 7, 8, 9, 11))
    expected[10, 20] += 1
    assert Counter(sink_rows("out", "n", "twice")) == expected


def test_record_that_yields_nothing(runner, tmp_path):
    """A record for which nothing is yielded fails as such, unless it says that it is dropped,
    and why.
    """

    def sift(record):
        if record["n"] < 5:
            yield {"n": record["n"]}
        elif record["n"] < 10:
            yield dropped("small")

    run = runner(piped(tmp_path, recorded(sift, "n INT")))
    assert run.settled(run.open()).failed == COUNT - 10
    assert failures(run) == [("sift", "emitted nothing", COUNT - 10)]
    assert [tuple(row) for row in run.ledger.rows(DROPS)] == [("sift", "small", 5)]


def test_required_column_of_a_record_stage(runner, tmp_path, sink_rows):
    """A record that leaves out a NOT NULL column, or yields null in it, fails; failures and
    drops have no columns.
    """

    def sparse(record):
        if record["n"] == 1:
            yield {"twice": 2}
        elif record["n"] == 2:
            yield {"n": None}
        elif record["n"] == 3:
            raise FailedRecord("three")
        elif record["n"] == 4:
            yield dropped("four")
        else:
            yield {"n": record["n"]}

    run = runner(piped(tmp_path, recorded(sparse, "n INT NOT NULL, twice INT")))
    assert run.settled(run.open()).failed == 3
    assert failures(run) == [
        ("sparse", "three", 1),
        ("sparse", "yielded n: expected int NOT NULL, found NULL", 2),
    ]
    assert len(sink_rows("out", "n")) == COUNT - 4


def test_what_was_yielded_counts_as_it_was(runner, tmp_path, sink_rows):
    """A dict, a list in it and the input record may be changed and yielded again: each row is
    what it was then.
    """

    def growing(record):
        if record["n"] == 1:
            tags = []
            row = {"n": 1, "tags": tags}
            for tag in "abc":
                tags.append(tag)
                yield row
        elif record["n"] == 2:
            for n in (20, 21):
                record["n"] = n
                yield {"n": record["n"]}
                record["tags"] = [str(n)]
                yield {name: record[name] for name in ("n", "tags")}
        else:
            yield dropped("other")

    pipeline = piped(tmp_path, recorded(growing, "n INT, tags ARRAY<STRING>"))
    run = runner(pipeline)
    assert run.settled(run.open()).failed == 0
    assert Counter((n, tuple(tags or ())) for n, tags in sink_rows("out", "n", "tags")) == Counter(
        [(1, ("a",)), (1, ("a", "b")), (1, ("a", "b", "c")),
         (20, ()), (20, ("20",)), (21, ()), (21, ("21",))]
    )  # fmt: skip


def test_a_dict_of_numbers_and_texts_that_is_yielded_again(runner, tmp_path, sink_rows):
    """So it is of one dict, or the input record itself, whose fields are replaced: ``a b c`` do
    not arrive as ``c c c``.
    """

    def again(record):
        if record["n"] == 1:
            row = {"n": 1}
            for letter in "abc":
                row["s"] = letter
                yield row
        elif record["n"] == 2:
            del record["copy"]
            for n in (20, 21):
                record["n"] = n
                yield record
        else:
            yield dropped("other")

    run = runner(piped(tmp_path, recorded(again, "n INT, s STRING")))
    assert run.settled(run.open()).failed == 0
    assert sink_rows("out", "n", "s") == [
        (1, "a"), (1, "b"), (1, "c"), (20, None), (21, None)
    ]  # fmt: skip


MISFITS = [
    ({"n": 3.7}, "yielded n: expected int, found 3.7"),
    ({"n": True}, "yielded n: expected int, found True"),
    ({"n": 10**5000}, "yielded n: expected int, found a value of type int"),
    ({"p": "1_5"}, "yielded p: expected decimal(10,2), found 1_5"),
    ({"f": 1e300}, "yielded f: expected float, found 1e+300"),
    ({"s": "a\ud800"}, "yielded s: expected string, found a\\ud800"),
    ({"s": "a\0b"}, "yielded s: expected string, found a\\x00b"),
    ({"s": 5}, "yielded s: expected string, found 5"),
    ({"v": "long"}, "yielded v: expected varchar(3), found long"),
    ({"d": datetime(2024, 1, 5, 12)}, "yielded d: expected date, found 2024-01-05 12:00:00"),
    ({"d": "2024-01-05"}, "yielded d: expected date, found 2024-01-05"),
    ({"p": Decimal("1.239")}, "yielded p: expected decimal(10,2), found 1.239"),
    ({"x": {"b": 1}}, "yielded x: expected struct<a:int>, found {'b': 1}"),
    ({"x": {"a": 1.5}}, "yielded x: expected struct<a:int>, found {'a': 1.5}"),
    ({"l": ["a", None, 1]}, "yielded l: expected array<string>, found ['a', None, 1]"),
    ({"m": {"k": "v"}}, "yielded m: expected map<string,int>, found {'k': 'v'}"),
]
REASONS = [ValueError("NUL \0"), FailedRecord("lone \udfff")]


def test_a_value_that_does_not_fit_fails_its_record(runner, tmp_path, sink_rows):
    """A value of another type, or one that no store can keep, fails its record with column, type
    and value; so does a reason with such characters; the rest arrives.
    """

    def misfit(record):
        n = record["n"]
        if n < len(MISFITS):
            yield {"n": n}
            yield MISFITS[n][0]
        elif n < len(MISFITS) + len(REASONS):
            raise REASONS[n - len(MISFITS)]
        elif n == len(MISFITS) + len(REASONS):
            yield dropped("for \ud800 \0")
        else:
            yield {
                "n": n, "f": 2, "s": "é", "v": "abc", "d": date(2024, 1, 5), "p": Decimal("1.20"),
                "x": {}, "l": [None], "m": {"k": None},
            }  # fmt: skip

    schema = (
        "n INT, f FLOAT, s STRING, v VARCHAR(3), d DATE, p DECIMAL(10,2), x STRUCT<a: INT>, "
        "l ARRAY<STRING>, m MAP<STRING, INT>"
    )
    run = runner(piped(tmp_path, recorded(misfit, schema)))
    assert run.settled(run.open()).failed == len(MISFITS) + len(REASONS)
    reasons = [reason for _, reason, _ in failures(run)]
    expected = [reason for _, reason in MISFITS]
    assert sorted(reasons) == sorted([*expected, "ValueError: NUL \\x00", "lone \\udfff"])
    assert run.ledger.rows(DROPS)[0].reason == "for \\ud800 \\x00"
    arrived = sink_rows("out", "n", "f", "s", "v")
    assert arrived == [(n, 2.0, "é", "abc") for n in range(len(MISFITS) + len(REASONS) + 1, COUNT)]


@pytest.mark.parametrize(
    "mark", [lambda: dropped(""), lambda: dropped(1, ""), lambda: failed(1, None)]
)
def test_a_reason_is_needed(mark):
    """A drop or a fail without a reason is refused: it would pass for something else."""
    with pytest.raises(TypeError, match="expected a reason"):
        mark()


def test_record_stage_of_all_types(runner, tmp_path, sink_rows):
    """Timestamps, decimals, lists and nulls pass through a record stage unchanged."""

    def hand_on(record):
        yield record

    schema = "n INT, at TIMESTAMP, price DECIMAL(10,2), tags ARRAY<STRING>, gone STRING"

    def declare(pipeline):
        @pipeline.stage(reads="copies", anchors="by_hand")
        def typed(frame):
            return frame.selectExpr(
                "n",
                "timestamp'2013-01-01 05:00:00.123456' AS at",
                "cast(n AS decimal(10,2)) AS price",
                "array('a', cast(n AS string)) AS tags",
                "cast(null AS string) AS gone",
                "_anchor",
            )

        pipeline.record_stage(reads="typed", schema=schema)(hand_on)
        return "hand_on"

    run = runner(piped(tmp_path, declare))
    assert run.settled(run.open()).failed == 0
    rows = sink_rows("out", "n", "at", "price", "tags", "gone")
    assert len(rows) == COUNT
    number, at, price, tags, gone = rows[0]
    assert (str(at)[:26], price, tags, gone) == (
        "2013-01-01 05:00:00.123456",
        number,
        ["a", str(number)],
        None,
    )


def test_a_bug_in_a_record_stage_holds_the_batch(runner, tmp_path):
    """A bug that fails every record stops the batch at hold_above instead of failing the
    records, and the driver that found it keeps which, why and with what content.
    """

    def buggy(record):
        yield {"n": record["m"]}

    pipeline = piped(tmp_path, recorded(buggy, "n INT"))
    pipeline.hold_above = 0.5
    run = runner(pipeline)
    batch = run.open()
    settlement = run.settled(batch)
    assert settlement.status == "held"
    assert "30 of 30 records failed; the limit is 50 %" in settlement.reason
    output = ["On hold: not decided. These records would fail:", "  30 at buggy: KeyError: 'm'"]
    assert preview_of(run.job.database, batch.batch_id) == output
    sample = run.ledger.rows("SELECT root_id, content FROM hold_sample ORDER BY root_id")
    assert [json.loads(row.content)["n"] for row in sample] == list(range(COUNT))
    assert run.ledger.explain(sample[7].root_id).content == '{"n": 7}'
    assert run.ledger.row("SELECT count(*) FROM failed_message")[0] == 0


def plain(record):
    return [record]


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (recorded(plain), "expected a generator"),
        (framed(plain, acks="on_reed"), "did you mean 'on_read'"),
        (framed(plain, emits="two"), "emits='two'"),
        (framed(plain, acks="untracked", emits="one"), "fails a record by its rows"),
    ],
)
def test_declarations_that_cannot_work(tmp_path, declare, message):
    """A record stage that is no generator, or an unknown option, is refused when it is declared."""
    with pytest.raises(DeclarationError, match=message):
        piped(tmp_path, declare)


@pytest.mark.parametrize("name", ["_failed", "_ACKLEDGER_ROOT"])
def test_reserved_name_in_a_record_stage(runner, tmp_path, name):
    """A record stage may not declare a column of the ledger's, in whatever case."""

    def reserved(record):
        yield record

    run = runner(piped(tmp_path, recorded(reserved, f"n INT, {name} STRING")))
    with pytest.raises(StageError, match=f"'{name}', a name of the ledger"):
        run.steps(run.open())
