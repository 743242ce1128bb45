"""The graph of an audited job against the losses and the lines of its plan."""

from collections import Counter

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger import audit
from ledger.auditing.attribution import Attribution
from ledger.auditing.losses import ELSEWHERE, INTENDED, LOST
from ledger.auditing.outputs import AuditOutput
from ledger.auditing.remarks import SEVERAL_ROWS
from ledger.auditing.results import judged
from ledger.auditing.sources import Sources
from ledger.lineage.catalyst import Catalyst
from ledger.lineage.sites import Sites

ORDERS = "id string, state string, shop string"
ROWS = [("a", "paid", "s1"), ("b", None, "s1"), ("c", "open", "s1"), ("d", "paid", None)]


def named(data: dict) -> list[tuple[str, str, dict]]:
    """The edges of a graph by the labels of their nodes, with the records that they lose."""
    nodes = data["graph"]["nodes"]
    edges = data["graph"]["edges"]
    return [
        (nodes[edge["start"]]["label"], nodes[edge["end"]]["label"], edge["records"])
        for edge in edges
    ]


def test_the_graph_has_what_can_lose_or_merge(spark):
    """Columns are folded away; each operation has its line, and each edge what is lost there."""

    def totals(orders: DataFrame, shops: DataFrame, *, closed: DataFrame) -> DataFrame:
        paid = orders.where("state = 'paid'").withColumn("x", F.lit(1)).select("id", "shop", "x")
        stocked = paid.join(shops.withColumn("y", F.lit(1)), "shop")
        open_ones = stocked.join(closed, "shop", "left_anti")
        return open_ones.groupBy("country").pivot("x", [1, 2]).count()

    shops = spark.createDataFrame([("s1", "DE"), ("s2", "FR")], "shop string, country string")
    closed = spark.createDataFrame([("s9",)], "shop string")
    orders = spark.createDataFrame(ROWS, ORDERS)
    report = audit(totals, orders, shops, references={"closed": closed})
    data = report.as_dict()
    assert Counter(map(str, named(data))) == Counter(
        map(
            str,
            [
                ("orders", "filter", {LOST: 1, INTENDED: 1}),
                ("filter", "inner join", {LOST: 1}),
                ("shops", "inner join", {LOST: 1}),
                ("inner join", "anti join", {}),
                ("closed", "anti join", {}),
                ("anti join", "groupBy", {}),
                ("groupBy", "the result", {}),
            ],
        )
    )
    nodes = {node["label"]: node for node in data["graph"]["nodes"]}
    first = totals.__code__.co_firstlineno
    lines = {"filter": 1, "inner join": 2, "anti join": 3, "groupBy": 4}
    for label, line in lines.items():
        assert nodes[label]["place"] == f"test_audit_graph.py:{first + line}"
    assert nodes["filter"]["detail"] == "state = 'paid'"
    assert nodes["inner join"]["detail"] == "on shop"
    assert nodes["groupBy"]["detail"].startswith("by country")
    assert nodes["closed"]["kind"] == "reference"
    consulted = [edge for edge in data["graph"]["edges"] if edge["is_consulted"]]
    assert [data["graph"]["nodes"][edge["start"]]["label"] for edge in consulted] == ["closed"]


def test_outputs_share_their_operations(spark, tmp_path):
    """A filter that two outputs have in common is one node, and an output that is not followed is
    joined with its sources.
    """
    catalyst, sites = Catalyst(spark), Sites()
    sources = Sources(catalyst, tmp_path)
    orders = sources.add("orders", spark.createDataFrame(ROWS, ORDERS))
    with sites.watching():
        stocked = orders.where("shop IS NOT NULL")
        frames = {"paid": stocked.where("state = 'paid'"), "all": stocked.groupBy("shop").count()}
    outputs = [AuditOutput("rdd", "job.py:9", why="rows of an RDD", sources=frozenset({0}))]
    for name, frame in frames.items():
        plan = catalyst.analyzed(frame)
        attribution = Attribution(catalyst, sources, sites.places(catalyst, plan, plan), plan)
        output = AuditOutput(name, "job.py:3")
        output.follow(attribution)
        outputs.append(output)
    report = judged(sources, outputs, final=("paid", "all"), title="job.py")
    data = report.as_dict()
    assert named(data) == [
        ("orders", "rdd", {}),
        ("orders", "filter", {INTENDED: 1}),
        ("filter", "filter", {ELSEWHERE: 1, INTENDED: 1}),
        ("filter", "paid", {}),
        ("filter", "groupBy", {}),
        ("groupBy", "all", {}),
    ]
    assert [output["is_followed"] for output in data["outputs"]] == [False, True, True]
    text = "\n".join(report.lines(100))
    assert "NOT FOLLOWED: outputs whose records are not known" in text
    assert "rows of an RDD" in text


def test_outputs_that_are_read_again(audited, tmp_path):
    """They are nodes between the operations before and after; joins and duplicates have their
    remarks; the report on one source has its losses alone.
    """
    (tmp_path / "job" / "shops.csv").write_text("shop,c\ns1,A\ns1,B\ns2,C\ns3,D\n")
    report = audited(
        """
        shops = spark.read.csv(f"{HERE}/shops.csv", header=True)
        orders.where("state = 'paid'").write.parquet("paid")
        spark.read.parquet("paid").join(shops, "shop").write.csv("sold", header=True)
        back = spark.read.csv("sold", header=True)
        back.dropDuplicates(["shop"]).write.parquet("first")
        back.where("c = 'A'").write.parquet("a")
        """
    )
    data = report.as_dict()
    assert Counter(map(str, named(data))) == Counter(
        map(
            str,
            [
                ("orders.csv", "filter", {LOST: 2, INTENDED: 2}),
                ("filter", "paid", {}),
                ("paid", "inner join", {LOST: 2}),
                ("shops.csv", "inner join", {LOST: 1}),
                ("inner join", "sold", {}),
                ("sold", "dropDuplicates", {}),
                ("dropDuplicates", "first", {}),
                ("sold", "filter", {INTENDED: 5}),
                ("filter", "a", {}),
            ],
        )
    )
    marks = {node["label"]: node["remarks"] for node in data["graph"]["nodes"] if node["remarks"]}
    assert set(marks) == {"inner join", "dropDuplicates"}
    assert marks["inner join"] == {SEVERAL_ROWS: 6}
    report.save_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "6 with several rows" in page
    of_shops = report.of_sources(["shops.csv"]).as_dict()
    assert [each for each in named(of_shops) if each[2]] == [
        ("shops.csv", "inner join", {LOST: 1}),
        ("sold", "filter", {INTENDED: 2}),
    ]


def test_values_are_read_once_and_escaped(spark, tmp_path):
    """The page has the first records of each loss, whatever characters their values have."""
    evil = "<script>alert(1)</script>"
    rows = [
        (evil, None, "s1"),
        ("b", None, evil),
        ("\x00\x1b", None, "\ud7ff"),
        ("z", "paid", "s1"),
    ]
    report = audit(
        lambda orders: orders.where("state = 'paid'"), spark.createDataFrame(rows, ORDERS)
    )
    examples = report.as_dict()["losses"][0]["examples"]
    assert [example["id"] for example in examples] == [evil, "b", "\x00\x1b"]
    report.save_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert evil not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 2
