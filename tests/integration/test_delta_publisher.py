"""Publishing into Delta tables: once, whole, in any order, and never beside what it replaces."""

import json
import os
import shutil
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import (
    CommitProperties,
    DeltaTable,
    Schema,
    TableFeatures,
    Transaction,
    write_deltalake,
)

from ledger.errors import (
    ConfigurationError,
    DeclarationError,
    FencedError,
    IntegrityError,
    NotReadyError,
    StageError,
    UnavailableError,
)
from ledger.sinks.base import SinkPlan, planned
from ledger.sinks.delta.publisher import DeltaPublisher
from tests.support.delta import SCHEMA, SINCE, SINK, Watch, labelled, labels, race, read, stage

ROUNDS = 25


@pytest.fixture
def path(tmp_path):
    """Where the table is to be."""
    return str(tmp_path / "table")


@pytest.fixture
def publisher(path):
    """A publisher that was asked about the rows."""
    return opened(path)


def opened(path, schema=SCHEMA, partition_by=()):
    pipeline = DeltaPublisher(path, partition_by)
    planned("the sink", pipeline, schema)
    pipeline.plan(schema, stage(pipeline, 0, 0, schema.empty_table()))
    return pipeline


def version(path):
    return DeltaTable(path).version()


def shown(path, batch_id):
    since = f"{SINCE:%Y-%m-%dT%H:%M:%S.%fZ}"
    return DeltaTable(path).transaction_version(f"ackledger/{SINK}/{batch_id}/{since}")


def test_batches_in_any_order(publisher, path):
    """Batch 12 is published before 11; both are read whole, with the user's columns alone."""
    publisher.publish(stage(publisher, 12, 7, labelled("12"), files=3))
    publisher.publish(stage(publisher, 11, 9, labelled("11")))
    assert labels(path) == {"12": 4, "11": 4}
    assert list(read(path)[0]) == ["id", "label"]
    assert (shown(path, 12), shown(path, 11)) == (7, 9)


def test_again_is_a_no_op(publisher, path):
    """A version that is published is not published again, not even after its staged files are
    gone.
    """
    delivery = stage(publisher, 1, 1, labelled("1"), files=2)
    publisher.publish(delivery)
    before = version(path)
    publisher.publish(delivery)
    assert version(path) == before
    assert DeltaTable(path).history(1)[0]["userMetadata"] == f"ackledger {SINK}: batch 1, run 1"
    DeltaTable(path).optimize.compact()
    shutil.rmtree(delivery.folder)
    DeltaPublisher(path, ()).publish(delivery)
    assert version(path) == before + 1
    assert labels(path) == {"1": 4}


@pytest.mark.parametrize("again", [1, 2])
def test_a_batch_of_another_ledger_is_another_batch(publisher, path, again):
    """A ledger that is set up again gives its batches and runs numbers that the table has: its
    rows are published, once, and those that are there stay."""
    publisher.publish(stage(publisher, 1, 1, labelled("old")))
    rows, place = labelled("new"), f"{path}/_ackledger/new/batch-1/run-{again}"
    other = stage(publisher, 1, again, rows, folder=place, since=SINCE + timedelta(days=1))
    publisher.publish(other)
    publisher.publish(other)
    assert labels(path) == {"old": 4, "new": 4}


def test_an_older_version_gives_way(publisher, path):
    """A later run's rows come in the commit in which the earlier run's go; the earlier is
    refused.
    """
    older = stage(publisher, 1, 3, labelled("old"), files=2)
    newer = stage(publisher, 1, 5, labelled("new", 2))
    publisher.publish(older)
    before = version(path)
    publisher.publish(newer)
    assert labels(path) == {"new": 2}
    assert version(path) == before + 1
    with pytest.raises(
        FencedError, match="run 5 of batch 1 is published, which is newer than run 3"
    ):
        publisher.publish(older)
    assert labels(path) == {"new": 2}


def test_two_batches_are_replaced(publisher, path):
    """Two batches go in the commit in which a third comes, and never come back; a fourth stays."""
    first, second, other = (stage(publisher, n, n, labelled(str(n)), files=2) for n in (1, 2, 3))
    for delivery in (first, second, other):
        publisher.publish(delivery)
    before = version(path)
    publisher.publish(stage(publisher, 4, 4, labelled("4"), replaces=(1, 2)))
    assert labels(path) == {"3": 4, "4": 4}
    assert version(path) == before + 1
    publisher.publish(stage(publisher, 5, 5, labelled("5"), replaces=(1, 2, 4)))
    assert labels(path) == {"3": 4, "5": 4}
    for late in (first, stage(publisher, 2, 9, labelled("2"))):
        with pytest.raises(FencedError, match="were replaced by those of another batch"):
            publisher.publish(late)
    assert labels(path) == {"3": 4, "5": 4}


def test_a_replaced_batch_that_was_never_published(publisher, path):
    """A batch that is replaced before it was published is refused when it comes."""
    late = stage(publisher, 1, 1, labelled("1"))
    publisher.publish(stage(publisher, 2, 2, labelled("2"), replaces=(1,)))
    with pytest.raises(FencedError, match="were replaced"):
        publisher.publish(late)
    assert labels(path) == {"2": 4}


def test_an_empty_delivery(publisher, path):
    """No rows: the table is made, the version recorded, and what is replaced goes all the same."""
    publisher.publish(stage(publisher, 1, 1, labelled("1", 0)))
    assert (read(path), shown(path, 1)) == ([], 1)
    publisher.publish(stage(publisher, 2, 2, labelled("2")))
    publisher.publish(stage(publisher, 3, 3, labelled("3", 0), replaces=(2,)))
    assert (read(path), shown(path, 3)) == ([], 3)


def test_only_the_named_files(publisher, path):
    """Files that a lost task left in the staging folder are not of the delivery."""
    delivery = stage(publisher, 1, 1, labelled("1"))
    stage(publisher, 1, 2, labelled("stray"), folder=delivery.folder)
    publisher.publish(delivery)
    assert labels(path) == {"1": 4}


def test_files_in_another_folder(publisher, path):
    """Files anywhere below the table are committed where they are, kept ones stay, others are
    refused.
    """
    elsewhere = stage(
        publisher, 1, 1, labelled("1"), files=2, folder=f"{path}/_ackledger/elsewhere"
    )
    publisher.publish(elsewhere)
    delivery = stage(publisher, 2, 2, labelled("2"), replaces=(1,))
    delivery = type(delivery)(**{**vars(delivery), "files": (*delivery.files, elsewhere.files[0])})
    publisher.publish(delivery)
    assert labels(path) == {"1": 2, "2": 4}
    outside = stage(publisher, 3, 3, labelled("3"), folder=f"{path}-beside")
    with pytest.raises(IntegrityError, match="expected it below the table's folder"):
        publisher.publish(outside)
    publisher.publish(stage(publisher, 4, 4, labelled("4"), replaces=(2,)))
    assert labels(path) == {"4": 4}


def test_a_missing_file(publisher, path):
    """A staged file that is gone or has another size stops the publish before anything is
    published.
    """
    delivery = stage(publisher, 1, 1, labelled("1"), files=2)
    whole = Path(delivery.files[1].path).read_bytes()
    Path(delivery.files[1].path).unlink()
    with pytest.raises(IntegrityError, match="it is gone"):
        publisher.publish(delivery)
    Path(delivery.files[1].path).write_bytes(whole[:-1])
    with pytest.raises(IntegrityError, match=f"found {len(whole) - 1} bytes"):
        publisher.publish(delivery)
    assert not DeltaTable.is_deltatable(path)
    Path(delivery.files[1].path).write_bytes(whole)
    publisher.publish(delivery)
    assert labels(path) == {"1": 4}


TEXTS = ["plain", "a b", "x/y", "100%", "p%20q", "a=b", "é=ü", "日本", "+&;,@!$()~", "{[#?*^]}"]
TEXTS += ["back\\slash", "tab\tnew\n", " edges ", ".", "..", "\"q'", "c:d", None]


def test_partition_values(path):
    """Null and special characters in partition values come back as they were, and can be
    replaced.
    """
    publisher = opened(path, SCHEMA, ("label",))
    rows = pa.table({"id": range(len(TEXTS)), "label": TEXTS}, schema=SCHEMA)
    for batch_id, replaced in ((1, ()), (2, (1,))):
        delivery = stage(
            publisher, batch_id, batch_id, rows, partition_by=("label",), replaces=replaced
        )
        publisher.publish(delivery)
        assert read(path) == sorted(rows.to_pylist(), key=repr)
    folders = {add["path"] for add in pa.table(DeltaTable(path).get_add_actions()).to_pylist()}
    assert len(folders) == len(TEXTS)


TYPES = {
    "flag": (pa.bool_(), [True, False, None]),
    "small": (pa.int16(), [-3, 4, None]),
    "whole": (pa.int64(), [2**40, -1, None]),
    "day": (pa.date32(), [date(2013, 1, 1), date(1900, 2, 28), None]),
    "local": (pa.timestamp("us"), [datetime(2013, 1, 1, 5, 6, 7), datetime(2013, 1, 2), None]),
}


@pytest.mark.parametrize("name", TYPES)
def test_partition_types(path, name):
    """Partition columns of every type that is taken come back as that type."""
    kind, values = TYPES[name]
    schema = pa.schema([("id", pa.int64()), (name, kind)])
    publisher = opened(path, schema, (name,))
    rows = pa.table({"id": [1, 2, 3], name: values}, schema=schema)
    publisher.publish(stage(publisher, 1, 1, rows, partition_by=(name,)))
    assert read(path) == sorted(rows.to_pylist(), key=repr)


def test_several_partition_columns(path):
    """Values are those of the folders right above a file, also where a column is named like
    others.
    """
    schema = pa.schema([("batch", pa.int32()), ("id", pa.int64()), ("run", pa.string())])
    publisher = opened(path, schema, ("run", "batch"))
    rows = pa.table({"batch": [1, 1, 2], "id": [1, 2, 3], "run": ["a", "b", "a"]}, schema=schema)
    delivery = stage(publisher, 7, 8, rows, partition_by=("run", "batch"))
    publisher.publish(delivery)
    assert read(path) == sorted(rows.to_pylist(), key=repr)
    strange = stage(publisher, 8, 9, rows, partition_by=("batch", "run"))
    with pytest.raises(
        IntegrityError, match=r"expected it in folders run=\.\.\./batch=\.\.\., and"
    ):
        publisher.publish(strange)


def test_types(path):
    """Every type that Spark has for both comes back, with and without time zone, nested too."""
    inner = pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))])
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("instant", pa.timestamp("us", "Europe/Berlin")),
            ("local", pa.timestamp("us")),
            ("day", pa.date32()),
            ("price", pa.decimal128(38, 10)),
            ("raw", pa.binary()),
            ("ratio", pa.float32()),
            ("inner", inner),
            ("several", pa.list_(inner)),
            ("named", pa.map_(pa.string(), pa.int32())),
        ]
    )
    nested = {"a": 1, "b": ["x", None]}
    instant = datetime.fromisoformat("2013-01-01T01:02:03.000004+00:00")
    values = [1, instant, instant.replace(tzinfo=None), instant.date(), Decimal("1.5"), b"\0", 0.5]
    values += [nested, [nested, None], [("k", 1)]]
    rows = pa.Table.from_pylist([dict(zip(schema.names, values, strict=True))], schema=schema)
    publisher = opened(path, schema)
    publisher.publish(stage(publisher, 1, 1, rows))
    (entries,) = DeltaTable(path).to_pyarrow_table().to_pylist()
    assert entries == dict(zip(schema.names, values, strict=True))
    protocol = DeltaTable(path).protocol()
    assert (protocol.reader_features, protocol.writer_features) == (["timestampNtz"],) * 2
    opened(path, schema)


BAD_SCHEMAS = [
    ([("id", pa.int64()), ("took", pa.duration("us"))], (), "'took' is of type duration"),
    ([("inner", pa.struct([("n", pa.uint8())]))], (), "'inner.n' is of type uint8"),
    ([("at", pa.timestamp("ns"))], (), "'at' is of type timestamp"),
    ([("a b", pa.int64())], (), "'a b': a Delta table takes no name"),
    ([("id", pa.int64()), ("ID", pa.int64())], (), "'id' and 'ID' are the same"),
    ([("id", pa.int64())], ("day",), "partitioned by 'day', which its input lacks"),
    ([("id", pa.int64())], ("id",), "partitioned by all of its columns"),
    ([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))], ("at",), "by 'at', a timestamp"),
    ([("id", pa.int64()), ("n", pa.decimal128(9, 2))], ("n",), r"by 'n', a decimal\(9,2\)"),
    ([("id", pa.int64()), ("s", pa.list_(pa.int64()))], ("s",), r"by 's', a array<long>"),
]


@pytest.mark.parametrize(("columns", "partition_by", "message"), BAD_SCHEMAS)
def test_what_delta_cannot_hold(path, columns, partition_by, message):
    """What no Delta table can hold is refused by name before anything is staged."""
    with pytest.raises(StageError, match=message):
        opened(path, pa.schema(columns), partition_by)
    assert not os.path.exists(path)


INNER = pa.struct([("a", pa.int32()), ("b", pa.string())])
MISFITS = [
    (SCHEMA.append(pa.field("more", pa.int32())), "'more': expected no such column, found integer"),
    (SCHEMA.remove(1), "'label': expected string, found no such column"),
    (SCHEMA.set(0, pa.field("id", pa.int32())), "'id': expected long, found integer"),
    (SCHEMA.set(1, pa.field("label", pa.list_(pa.string()))), "string, found array<string>"),
]


@pytest.mark.parametrize(("schema", "message"), MISFITS)
def test_rows_that_do_not_fit(publisher, path, schema, message):
    """Column, expected and found type are named when rows do not fit a table that exists."""
    publisher.publish(stage(publisher, 1, 1, labelled("1")))
    with pytest.raises(StageError, match=message):
        opened(path, schema)
    opened(path, pa.schema(reversed(list(SCHEMA))))


def test_nulls_and_parts_that_do_not_fit(path):
    """Of a table of the user's own that forbids null each row has to meet a rule; one with other
    parts in a column is not written to.
    """
    expected = pa.schema([pa.field("id", pa.int64(), nullable=False), ("inner", INNER)])
    DeltaTable.create(path, expected)
    plain = pa.schema([("id", pa.int64()), ("inner", INNER)])
    (rule,) = opened(path, plain).plan(plain, None).rules
    assert rule.condition == "`id` IS NOT NULL"
    turned = pa.struct([INNER.field(1), INNER.field(0)])
    with pytest.raises(
        StageError, match="parts of column 'inner': expected them in the order a, b"
    ):
        opened(path, pa.schema([expected.field(0), ("inner", turned)]))


def test_other_partition_columns(path):
    """A table is not written to by other partition columns than its own."""
    DeltaTable.create(path, SCHEMA, partition_by=["label"])
    with pytest.raises(StageError, match=r"expected \['label'\], found \[\]"):
        opened(path)


def test_tables_with_rules(path):
    """A table that asks for more than adding and removing files is refused, and says by what."""
    DeltaTable.create(path, SCHEMA, configuration={"delta.appendOnly": "true"})
    with pytest.raises(ConfigurationError, match=r"table property delta\.appendOnly = true"):
        opened(path)
    table = DeltaTable(path)
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    opened(path)
    table.alter.add_constraint({"positive": "id > 0"})
    (rule,) = opened(path).plan(SCHEMA, None).rules
    assert (rule.condition, rule.reason) == (
        "id > 0",
        "CHECK constraint positive (id > 0) violated",
    )
    table.alter.drop_constraint("positive")
    table.alter.add_feature(TableFeatures.DeletionVectors, True)
    with pytest.raises(ConfigurationError, match="table feature deletionVectors"):
        opened(path)


def ruled(path, nullable=True, label="string"):
    """The table, made again with other rules."""
    fields = [
        {"name": "id", "type": "long", "nullable": nullable, "metadata": {}},
        {"name": "label", "type": "string", "nullable": True, "metadata": {}},
    ]
    fields[1]["metadata"] = {"__CHAR_VARCHAR_TYPE_STRING": label} if label != "string" else {}
    struct = json.dumps({"type": "struct", "fields": fields})
    DeltaTable.create(path, Schema.from_json(struct), mode="overwrite")


def test_rules_that_come_after_the_staging(path):
    """NOT NULL and a length that the staging did not compare the rows with stop the commit; what
    was compared passes."""
    ruled(path)
    publisher = opened(path)
    full = stage(publisher, 1, 1, labelled("long"))
    null = stage(publisher, 2, 2, pa.table({"id": [1, None], "label": ["a", "b"]}, schema=SCHEMA))
    assert publisher.plan(SCHEMA, full) == publisher.plan(SCHEMA, null) == SinkPlan()
    ruled(path, label="varchar(3)")
    with pytest.raises(ConfigurationError, match=r"'label' is a varchar\(3\): .*TYPE string"):
        publisher.publish(full)
    assert len(publisher.plan(SCHEMA, full).rules) == 1
    publisher.publish(full)
    ruled(path, nullable=False)
    with pytest.raises(ConfigurationError, match=r"'id' is NOT NULL: .*`id` DROP NOT NULL"):
        publisher.publish(null)
    other = stage(publisher, 3, 3, labelled("kept"))
    assert len(publisher.plan(SCHEMA, other).rules) == 1
    publisher.publish(other)
    assert labels(path)["kept"] == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delta.setTransactionRetentionDuration", "interval 1 day"),
        ("delta.columnMapping.mode", "name"),
    ],
)
def test_tables_with_properties(path, name, value):
    """A table that forgets transactions, or names columns in files otherwise, is refused."""
    DeltaTable.create(path, SCHEMA, configuration={name: value})
    with pytest.raises(ConfigurationError, match=f"table property {name} = {value}"):
        opened(path)


def test_tables_with_column_rules(path):
    """A column that a writer of rows would have to check or make up is refused, by its rule's
    name.
    """
    field = {"name": "id", "type": "long", "nullable": True}
    field["metadata"] = {"delta.generationExpression": "1"}
    schema = Schema.from_json(json.dumps({"type": "struct", "fields": [field]}))
    DeltaTable.create(path, schema)
    with pytest.raises(ConfigurationError, match=r"delta\.generationExpression of column id"):
        opened(path)


def test_where_no_table_can_be(tmp_path):
    """A folder with other files in it is refused, for a vacuum would delete them; so is a % in a
    path.
    """
    (tmp_path / "batch=1").mkdir()
    with pytest.raises(ConfigurationError, match="found 'batch=1', which no reader"):
        opened(str(tmp_path))
    with pytest.raises(DeclarationError, match="without %"):
        DeltaPublisher(f"{tmp_path}/a%20b", ())


def test_a_table_without_a_description(publisher, path):
    """Without a table and without columns publish says that the sink has to run again; with them it
    needs nothing of the process that checked."""
    delivery = stage(publisher, 1, 1, labelled("1"))
    columns = Path(path, "_ackledger", "columns.json")
    text = columns.read_text()
    columns.unlink()
    with pytest.raises(NotReadyError, match="its columns are unknown"):
        DeltaPublisher(path, ()).publish(delivery)
    columns.write_text(text)
    DeltaPublisher(path, ()).publish(delivery)
    assert labels(path) == {"1": 4}


def test_two_ideas_of_a_table(publisher, path):
    """Files that do not fit the columns that were asked about last make no table."""
    delivery = stage(publisher, 1, 1, labelled("1"))
    opened(path, SCHEMA.set(0, pa.field("id", pa.string())))
    with pytest.raises(StageError, match="to be made: column 'id': expected string, found long"):
        publisher.publish(delivery)
    assert not DeltaTable.is_deltatable(path)


def test_a_folder_that_looks_like_a_column(path):
    """A folder with = in its name above the partition's, which Polars would take for a column,
    is refused.
    """
    publisher = opened(path, SCHEMA, ("label",))
    folder = f"{publisher.staging(1, 1)}/kept=7"
    delivery = stage(publisher, 1, 1, labelled("1"), partition_by=("label",), folder=folder)
    with pytest.raises(IntegrityError, match=r"label=\.\.\., and no other with = in its name"):
        publisher.publish(delivery)


def test_vacuum(publisher, path):
    """A vacuum of everything takes neither what is published nor what is still staged."""
    publisher.publish(stage(publisher, 1, 1, labelled("1"), files=2))
    staged = stage(publisher, 2, 2, labelled("2"))
    publisher.publish(stage(publisher, 3, 3, labelled("3"), replaces=(1,)))
    for full in (True, False):
        DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=full)
    assert labels(path) == {"3": 4}
    publisher.publish(staged)
    assert labels(path) == {"2": 4, "3": 4}


@pytest.mark.parametrize("rewrite", ["compact", "delete"])
def test_rewritten_by_the_user(publisher, path, rewrite):
    """Rows that have to give way and were rewritten into other files are not left beside the new
    ones.
    """
    publisher.publish(stage(publisher, 1, 1, labelled("old"), files=3))
    publisher.publish(stage(publisher, 2, 2, labelled("other")))
    table = DeltaTable(path)
    if rewrite == "compact":
        table.optimize.compact()
    else:
        table.delete("label = 'old' and id = 0")
    again = stage(publisher, 1, 5, labelled("new"))
    replacing = stage(publisher, 3, 3, labelled("new"), replaces=(1,))
    before = version(path)
    for delivery in (again, replacing):
        with pytest.raises(IntegrityError, match="of the 3 files that it added are no longer"):
            publisher.publish(delivery)
    assert version(path) == before
    # The way out that the message names: delete the rows, then say so in the list.
    DeltaTable(path).delete("label = 'old'")
    listed = Path(publisher.staging(1, 1)).with_suffix(".json")
    listed.write_text(json.dumps({"files": []}))
    publisher.publish(replacing)
    assert labels(path) == {"other": 4, "new": 4}


def test_restored_by_the_user(publisher, path):
    """The other way out: a table restored to the version before a compaction takes the
    replacement.
    """
    publisher.publish(stage(publisher, 1, 1, labelled("old"), files=3))
    before = version(path)
    DeltaTable(path).optimize.compact()
    DeltaTable(path).restore(before)
    publisher.publish(stage(publisher, 1, 5, labelled("new")))
    assert labels(path) == {"new": 4}


def test_a_lost_list(publisher, path):
    """Without the list of a version's files the publisher does not guess which ones have to go."""
    publisher.publish(stage(publisher, 1, 1, labelled("old")))
    Path(publisher.staging(1, 1)).with_suffix(".json").unlink()
    with pytest.raises(IntegrityError, match=r"run-1\.json: expected the list of files"):
        publisher.publish(stage(publisher, 1, 2, labelled("new")))
    assert labels(path) == {"old": 4}


def test_after_a_checkpoint(publisher, path):
    """What is published is known from a checkpoint alone, when the log's earlier entries are
    gone.
    """
    older = stage(publisher, 1, 1, labelled("old"))
    publisher.publish(older)
    publisher.publish(stage(publisher, 2, 2, labelled("2")))
    DeltaTable(path).create_checkpoint()
    for entry in Path(path, "_delta_log").glob("*.json"):
        if int(entry.stem) < version(path):
            entry.unlink()
    publisher.publish(stage(publisher, 1, 3, labelled("new")))
    assert labels(path) == {"new": 4, "2": 4}
    with pytest.raises(FencedError):
        publisher.publish(older)


def test_a_commit_that_fails_after_it_landed(publisher, path, monkeypatch):
    """A lost answer is no failure: the table is asked, and has published the batch once."""
    commit = DeltaTable.create_write_transaction

    def lose(self, *arguments, **options):
        commit(self, *arguments, **options)
        raise OSError("connection reset")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lose)
    publisher.publish(stage(publisher, 1, 1, labelled("1")))
    assert labels(path) == {"1": 4}


def test_a_commit_that_fails(publisher, path, monkeypatch):
    """A storage that refuses says so at once, and the next call goes on."""
    delivery = stage(publisher, 1, 1, labelled("1"))
    with monkeypatch.context() as patch:

        def refuse(*arguments, **options):
            raise OSError("no space left")

        patch.setattr(DeltaTable, "create_write_transaction", refuse)
        with pytest.raises(
            UnavailableError, match="did not take the commit of batch 1: no space left"
        ):
            publisher.publish(delivery)
    publisher.publish(delivery)
    assert labels(path) == {"1": 4}


def test_between_look_and_commit(publisher, path, monkeypatch):
    """A commit of somebody else after the look makes it look again: a compaction is noticed even
    then.
    """
    publisher.publish(stage(publisher, 1, 1, labelled("old"), files=2))
    commit = DeltaTable.create_write_transaction

    def late(self, *arguments, **options):
        monkeypatch.undo()
        DeltaTable(path).optimize.compact()
        commit(self, *arguments, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", late)
    with pytest.raises(IntegrityError, match="of the 2 files"):
        publisher.publish(stage(publisher, 1, 2, labelled("new")))
    assert labels(path) == {"old": 4}


def test_never_first(publisher, path, monkeypatch):
    """Who always comes second gives up after so many attempts, and says so."""
    publisher.publish(stage(publisher, 1, 1, labelled("1")))
    commit = DeltaTable.create_write_transaction
    other = CommitProperties(app_transactions=[Transaction("other", 1)])

    def late(self, *arguments, **options):
        table = DeltaTable(path)
        commit(table, [], "append", table.schema(), commit_properties=other)
        commit(self, *arguments, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", late)
    monkeypatch.setattr("ledger.sinks.delta.publisher.LONGEST_PAUSE_SECONDS", 0)
    with pytest.raises(UnavailableError, match="others committed before each of 60 attempts"):
        publisher.publish(stage(publisher, 2, 2, labelled("2")))
    assert labels(path) == {"1": 4}


def test_an_altered_table(publisher, path):
    """A column that was added after the check is null in what was staged before; a changed one
    stops it.
    """
    first, second, third = (stage(publisher, n, n, labelled(str(n), 1)) for n in (1, 2, 3))
    publisher.publish(first)
    more = labelled("own", 1).append_column("more", pa.array([1]))
    write_deltalake(path, more, mode="append", schema_mode="merge")
    publisher.publish(second)
    assert {row["label"]: row["more"] for row in read(path)} == {"1": None, "2": None, "own": 1}
    with pytest.raises(StageError, match="'more': expected long, found no such column"):
        opened(path)
    changed = more.set_column(0, "id", pa.array(["1"]))
    write_deltalake(path, changed, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(StageError, match="'id': expected string, found long"):
        publisher.publish(third)
    publisher.publish(first)


def test_the_same_at_once(tmp_path):
    """Two processes publish one delivery into a table that is not there yet: made once, shown
    once.
    """
    rounds = []
    for number in range(ROUNDS):
        publisher = DeltaPublisher(str(tmp_path / str(number)), ())
        rounds.append((publisher._path, stage(publisher, 1, 1, labelled("1"), files=2)))
    assert race(rounds, rounds) == [["done"] * ROUNDS] * 2
    for path, _ in rounds:
        assert labels(path) == {"1": 4}
        assert version(path) == 1


def test_two_versions_at_once(tmp_path):
    """The newer of two versions is published alone, whichever is faster; the older is refused or
    replaced.
    """
    older, newer = [], []
    for number in range(ROUNDS):
        publisher = DeltaPublisher(str(tmp_path / str(number)), ())
        older.append((publisher._path, stage(publisher, 1, 1, labelled("old"), files=2)))
        newer.append((publisher._path, stage(publisher, 1, 2, labelled("new"), files=2)))
    first, second = race(older, newer)
    assert second == ["done"] * ROUNDS
    assert all(came == "done" or came.startswith("FencedError") for came in first)
    for path, _ in newer:
        assert labels(path) == {"new": 4}


def test_a_batch_and_its_replacement_at_once(tmp_path):
    """A batch that comes while another replaces it is never published beside it."""
    replaced, replacing = [], []
    for number in range(ROUNDS):
        publisher = DeltaPublisher(str(tmp_path / str(number)), ())
        replaced.append((publisher._path, stage(publisher, 1, 9, labelled("old"))))
        replacing.append((publisher._path, stage(publisher, 2, 1, labelled("new"), replaces=(1,))))
    first, second = race(replaced, replacing)
    assert second == ["done"] * ROUNDS
    assert all(came == "done" or came.startswith("FencedError") for came in first)
    for path, _ in replacing:
        assert labels(path) == {"new": 4}


def test_many_batches_at_once(publisher, path):
    """Three processes publish batches of their own into one table: all are published, each once."""
    contenders = [
        [(path, stage(publisher, n, n, labelled(str(n)))) for n in range(start, 30, 3)]
        for start in range(3)
    ]
    assert race(*contenders) == [["done"] * 10] * 3
    assert labels(path) == {str(n): 4 for n in range(30)}


def test_readers_see_whole_batches(publisher, path):
    """A reader beside many publishes sees each family of batches whole, one at a time, and never
    gone.
    """
    publisher.publish(stage(publisher, 1000, 1, labelled("first"), files=4))
    with Watch(path) as watch:
        for family in range(12):
            for turn, replaced in ((0, ()), (1, ()), (2, (family * 10 + 1,))):
                batch_id = family * 10 + (2 if turn == 2 else 1)
                rows = labelled(f"{family}.{turn}", 8)
                publisher.publish(
                    stage(publisher, batch_id, turn + 1, rows, files=4, replaces=replaced)
                )
    assert len(watch.seen) > 4
    families: set[str] = set()
    for counts in watch.seen:
        assert counts.pop("first") == 4
        assert set(counts.values()) <= {8}
        present = [label.split(".")[0] for label in counts]
        assert len(present) == len(set(present))
        assert families <= set(present)
        families = set(present)
