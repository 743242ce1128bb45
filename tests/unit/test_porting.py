"""``ackledger init --from``: the pipeline that is written for a job, and what is left to do."""

import ast
import json
from functools import partial
from textwrap import dedent

import pytest
from typer.testing import CliRunner

from ledger.auditing.expected import ExpectedLoss
from ledger.cli.base import app
from ledger.cli.porting.writing import port
from ledger.errors import InputError
from tests.support.ported_jobs import pipeline_of, ported_in

START = """\
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
"""
FUNCTIONS = f'''"""Orders by city."""

import argparse

{START}
SCHEMA = "id INT, shop STRING, cents INT"
MINIMUM = 3


def clean(orders):
    return orders.where(F.col("cents") > MINIMUM)


def with_city(orders, shops):
    return orders.join(F.broadcast(shops), "shop", "left")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--date")
    args = parser.parse_args()
    spark = SparkSession.builder.getOrCreate()
    orders = spark.read.schema(SCHEMA).option("header", True).csv(f"orders/{{args.date}}/*.csv")
    shops = spark.read.csv("shops.csv", header=True, sep=";")
    df = clean(orders)
    df = with_city(df, shops)
    df.show()
    totals = (
        df.groupBy("city")
        .agg(F.sum("cents").alias("cents"))
        .withColumn("day", F.lit(args.date))
        .withColumn("small", F.col("cents") < MINIMUM)
    )
    df.write.mode("overwrite").partitionBy("city").parquet("out/orders")
    totals.write.format("jdbc").option("url", "jdbc:postgresql://db/x").option(
        "dbtable", "totals"
    ).save()


if __name__ == "__main__":
    main()
'''
SCRIPT = f"""\
{START}
SCHEMA = "dest STRING, late INT"
LIMIT = 15
spark = SparkSession.builder.getOrCreate()
df = spark.read.json("flights/", schema=SCHEMA)
airports = spark.read.jdbc("jdbc:x", "public.airports")
df = df.filter(df.dest != "XXX")
df = df.withColumn("is_late", F.col("late") > LIMIT)
known = df.join(airports, df.dest == airports.faa).drop(airports.faa)
if LIMIT > 10:
    known = known.withColumn("checked", F.lit(1))
known.write.format("delta").save("lake/known")
df.write.csv("s3://lake/late")
for name in ["a", "b"]:
    spark.read.table(name).write.parquet("out/" + name)
"""
SQL = f'''\
{START}
spark = SparkSession.builder.getOrCreate()
orders = spark.read.parquet("orders/*.parquet")
orders.createOrReplaceTempView("orders")
totals = spark.sql("""
    SELECT shop, sum(cents) AS cents
    FROM orders JOIN rates USING (shop)
    GROUP BY shop
""")
totals.write.parquet("totals")
day = spark.sql(f"SELECT * FROM orders WHERE day = '{{input()}}'")
day.write.parquet("day")
'''
CHAIN = f"""\
{START}

def trimmed(df):
    return df.dropna()


def valued(df):
    rates = df.sparkSession.read.table("rates")
    return df.join(rates, "currency").repartition(df.rdd.getNumPartitions())


def main(spark, day):
    (
        spark.read.parquet(f"/lake/orders/{{day}}")
        .transform(trimmed)
        .transform(valued)
        .coalesce(1)
        .write.parquet("/lake/valued")
    )


if __name__ == "__main__":
    import sys
    main(SparkSession.builder.getOrCreate(), sys.argv[1])
"""
READING = f"""\
{START}
BASE = "orders"


def load(spark, folder, header=True):
    path = f"{{folder}}/{{BASE}}.csv"
    df = spark.read.csv(path, header=True, schema="id INT")
    df = df.dropna()
    return df


def both(df):
    return df.where("id < 5"), df.where("id >= 5")


def save(df, path):
    df.coalesce(1).write.parquet(path)


def main():
    spark = SparkSession.builder.getOrCreate()
    df = load(spark, "data")
    df = df.distinct()
    good, bad = both(df)
    save(good, "out/good")
    save(bad, "out/bad")
    again = spark.read.parquet("out/good")
    try:
        save(again.limit(3), "out/few")
    except Exception:
        print("failed")


main()
"""


@pytest.fixture
def ported(tmp_path):
    """Port a job's text; return what was written. Its imports must be used."""
    return partial(ported_in, tmp_path)


def at(text, part):
    """The file and line of a part of a job's text."""
    return f"my_job.py:{text[: text.index(part)].count(chr(10)) + 1}"


def test_functions_become_stages(ported, tmp_path, monkeypatch):
    """A job of functions: stages call them, and a lookup is a reference."""
    result = ported(FUNCTIONS)
    assert result.text.partition("\n\n\n")[2] == dedent("""\
        @pipeline.stage(reads="orders")
        def clean(orders: DataFrame) -> DataFrame:
            return my_job.clean(orders)


        @pipeline.stage(reads="clean")
        def with_city(clean: DataFrame, *, shops: DataFrame) -> DataFrame:
            return my_job.with_city(clean, shops)


        @pipeline.stage(reads="with_city")
        def totals(with_city: DataFrame) -> DataFrame:
            return (
                with_city.groupBy("city")
                .agg(F.sum("cents").alias("cents"))
                .withColumn("day", F.lit(args.date))
                .withColumn("small", F.col("cents") < my_job.MINIMUM)
            )


        pipeline.sink(
            "with_city_out",
            ParquetSink("out/orders", partition_by=("city",)),
            reads="with_city",
        )
        pipeline.sink("totals_out", PostgresSink("env:SINK_URL", "totals"), reads="totals")
        """)
    todo = "\n".join(result.todo)
    assert f"{at(FUNCTIONS, 'orders = ')}: orders reads a path that is computed" in todo
    assert f"{at(FUNCTIONS, 'shops = ')}: shops is only the right side of joins" in todo
    assert f"{at(FUNCTIONS, 'args = ')}: args is not known: set it in the stage totals" in todo
    assert f"{at(FUNCTIONS, 'df.write')}: with_city_out overwrites" in todo
    pipeline = pipeline_of(tmp_path / "my_job_pipeline.py", monkeypatch)
    (orders,) = pipeline.sources()
    assert orders.columns == "id INT, shop STRING, cents INT"
    assert [*pipeline.references(pipeline.step("with_city"))] == ["shops"]
    assert (
        dedent("""\
        pipeline.source(
            "orders",
            FileSource("orders/{{ params.date }}/*.csv", schema=my_job.SCHEMA),
        )
        pipeline.reference(
            "shops",
            FileSource("shops.csv", schema="TODO STRING", options={"sep": ";"}),
        )
        """)
        in result.text
    )


def test_statements_of_a_script_are_copied(ported, tmp_path, monkeypatch):
    """A script at module level is not imported: constants and statements are copied in order."""
    result = ported(SCRIPT)
    assert "import my_job" not in result.text
    assert (
        dedent("""\
        @pipeline.stage(reads="flights")
        def late_rows(flights: DataFrame) -> DataFrame:
            LIMIT = 15
            df = flights.filter(flights.dest != "XXX")
            return df.withColumn("is_late", F.col("late") > LIMIT)


        @pipeline.stage(reads="late_rows")
        def known(late_rows: DataFrame, *, airports: DataFrame) -> DataFrame:
            LIMIT = 15
            known = late_rows.join(airports, late_rows.dest == airports.faa).drop(airports.faa)
            if LIMIT > 10:
                known = known.withColumn("checked", F.lit(1))
            return known
        """)
        in result.text
    )
    todo = "\n".join(result.todo)
    assert "my_job.py:8: airports reads jdbc public.airports" in todo
    assert f"{at(SCRIPT, 'for name')}: this loop reads or writes, at my_job.py:17" in todo
    assert f"{at(SCRIPT, 'df.write.csv')}: late writes csv: here it is Delta" in todo
    pipeline = pipeline_of(tmp_path / "my_job_pipeline.py", monkeypatch)
    (flights,) = pipeline.sources()
    assert flights.columns == "dest STRING, late INT"
    assert 'FileSource("flights/*", format="json", schema=SCHEMA)' in result.text


def test_statements_with_others_in_them(ported):
    """Loops, conditions and inner functions are copied, with the values that they need."""
    text = dedent(
        """\
        from functools import reduce

        from pyspark.sql import DataFrame, SparkSession
        from pyspark.sql import functions as F

        COLUMNS = ["a", "b"]


        def main():
            spark = SparkSession.builder.getOrCreate()
            least = int("3")
            first = spark.read.parquet("in/first/*.parquet")
            second = spark.read.parquet("in/second/*.parquet")
            df = reduce(DataFrame.unionByName, [first, second])
            for column in COLUMNS:
                df = df.withColumn(column, F.trim(column))
            if least > 2:
                df = df.where(F.col("n") > 0)

            def large(frame):
                return frame.where(F.col("n") > least)

            kept = large(df)
            kept.write.parquet("out/kept")


        if __name__ == "__main__":
            main()
        """
    )
    assert (
        dedent(
            """\
        @pipeline.stage(reads=["first", "second"])
        def kept(first: DataFrame, second: DataFrame) -> DataFrame:
            least = int("3")
            df = reduce(DataFrame.unionByName, [first, second])
            for column in my_job.COLUMNS:
                df = df.withColumn(column, F.trim(column))
            if least > 2:
                df = df.where(F.col("n") > 0)

            def large(frame):
                return frame.where(F.col("n") > least)

            return large(df)
        """
        )
        in ported(text).text
    )


def test_views_of_sql(ported):
    """A SQL text is copied with its views; tables and computed texts are listed."""
    result = ported(SQL)
    assert '    orders.createOrReplaceTempView("orders")\n' in result.text
    assert 'return spark.sql("""\n    SELECT shop' in result.text
    assert "my_job.py:7: reads table rates in SQL: declare a reference, and make it a view" in (
        result.todo
    )
    assert (
        "my_job.py:13: the text of a SQL statement is computed: write this part by hand"
        in result.todo
    )
    assert "my_job.py:14: writes rows that come from no source: it is left out" in result.todo
    assert 'sink("day' not in result.text


def test_a_chain_of_transforms(ported):
    """A chain is one stage; what its functions read and take out of Spark is listed."""
    result = ported(CHAIN)
    assert "        .transform(my_job.trimmed)\n        .transform(my_job.valued)\n" in result.text
    todo = "\n".join(result.todo)
    assert "my_job.py:18: valued reads or writes by itself: pass it a reference" in todo
    assert "my_job.py:16: orders reads a path that is computed, f'/lake/orders/{day}'" in todo


def test_functions_that_read_or_write_are_followed(ported):
    """Their statements are copied to the place of the call."""
    result = ported(READING)
    assert 'pipeline.source("orders", FileSource("data/orders.csv", schema="id INT"))' in (
        result.text
    )
    assert (
        dedent("""\
        @pipeline.stage(reads="orders")
        def orders_rows(orders: DataFrame) -> DataFrame:
            df = orders.dropna()
            return df.distinct()
        """)
        in result.text
    )
    assert "    good, bad = my_job.both(orders_rows)\n    return bad\n" in result.text
    assert "return again.limit(3)" in result.text
    todo = "\n".join(result.todo)
    assert f"{at(READING, '    except')}: this error handler is left out" in todo
    assert f"reads what {at(READING, '    df.coalesce')} writes: read its stage instead" in todo


def test_paths_that_the_command_line_gives(ported):
    """A source has parameters in place of values of the command line. A read of what the job has
    written is recognized.
    """
    text = dedent("""\
        import os
        import sys
        from pathlib import Path


        def orders(spark, source, target):
            path = os.path.join(source, "orders", "*.csv")
            df = spark.read.csv(path, header=True, schema="id INT")
            df.write.parquet(os.path.join(target, "orders"))


        def totals(spark, target):
            folder = os.path.join(target, "orders")
            df = spark.read.schema("id INT").parquet(folder)
            df.groupBy().count().write.parquet(str(Path("out") / "totals"))
            other = spark.read.schema("id INT").parquet(os.path.join(sys.argv[3], "orders"))
            other.write.parquet(str(Path("out") / "other"))


        def main(spark):
            source, target = sys.argv[1], sys.argv[2]
            orders(spark, source, target)
            totals(spark, target)
        """)
    result = ported(text)
    todo = "\n".join(result.todo)
    assert 'FileSource("{{ params.source }}/orders/*.csv", schema="id INT")' in result.text
    assert 'ParquetSink("TODO/orders")' in result.text
    assert "reads a path that is computed, os.path.join(source, 'orders', '*.csv'): write" in todo
    assert "or run it with --param source=...\n" in todo
    assert "writes to a path that is computed, os.path.join(target, 'orders'): write it" in todo
    assert f"{at(text, 'df = spark.read.schema')}: reads what my_job.py:9 writes" in todo
    assert todo.count("read its stage instead") == 1
    assert "params.target" not in result.text
    assert 'ParquetSink("out/totals")' in result.text


def test_a_loop_that_reads(ported):
    """The list of what is left to do has the results of a loop, and no counter of one."""
    text = dedent("""\
        from pyspark.sql import functions as F


        def main(spark):
            parts = []
            for i, path in enumerate(["a", "b"]):
                parts.append(spark.read.parquet(path))
            df = spark.read.parquet("in/*.parquet")
            for i in range(len(parts)):
                df = df.union(parts[i])
            df.write.parquet("out/all")
        """)
    result = ported(text)
    todo = "\n".join(result.todo)
    assert "my_job.py:6: this loop reads or writes, at my_job.py:7: write it by hand" in todo
    assert "my_job.py:6: parts is left out: make it in the stage all_rows" in todo
    assert ": i is" not in todo


def test_options_of_the_session(ported):
    """Options on which rows may depend are listed, and those for tuning are not."""
    text = dedent("""\
        from pyspark import SparkConf
        from pyspark.sql import SparkSession

        conf = SparkConf().set("spark.sql.ansi.enabled", "false").set("spark.executor.memory", "1g")
        spark = (
            SparkSession.builder.config(conf=conf)
            .config("spark.sql.shuffle.partitions", "8")
            .config("spark.sql.caseSensitive", "true")
            .getOrCreate()
        )
        spark.read.parquet("in/*.parquet").distinct().write.parquet("out")
        """)
    expected = "my_job.py:4: sets spark.sql.ansi.enabled, spark.sql.caseSensitive: set those that"
    assert expected in "\n".join(ported(text).todo)


def test_variables_of_two_calls_are_not_mixed_up(ported):
    """A function that is followed twice, and copies of variables that change afterwards."""
    text = dedent("""\
        def load(name):
            df = spark.read.parquet(f"in/{name}.parquet")
            df = df.dropna()
            return df


        def main(spark):
            a = load("a")
            b = spark.read.parquet("in/b.parquet")
            c = b
            b = load("c")
            d = b
            b = b.dropna()
            e = b
            b = b.join(a, f"{KEY}")
            b.union(c).union(d).union(e).write.parquet("out")


        KEY = "id"
        """)
    assert (
        dedent("""\
        @pipeline.stage(reads=["a", "b", "c"])
        def a_rows(a: DataFrame, b: DataFrame, c: DataFrame) -> DataFrame:
            df = a.dropna()
            load_df = c.dropna()
            main_b = load_df.dropna()
            e = main_b
            main_b = main_b.join(df, f'{my_job.KEY}')
            return main_b.union(b).union(load_df).union(e)
        """)
        in ported(text).text
    )


def test_a_text_in_triple_quotes_keeps_its_lines(ported):
    """The lines of a text are not indented, also where names in it change."""
    text = dedent('''\
        def main(spark):
            rows = spark.read.parquet("in/rows.parquet")
            rows.createOrReplaceTempView("rows")
            spark.sql(f"""
              SELECT {COLUMNS}
            FROM rows""").write.parquet("out")


        COLUMNS = "a, b"
        ''')
    body = ported(text).text
    namespace = {"my_job": type("job", (), {"COLUMNS": "a, b"})}
    source = body[body.index("spark.sql(") + 10 : body.index("\n\n\npipeline.sink")].rstrip(")")
    assert eval(source, namespace) == "\n      SELECT a, b\n    FROM rows"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("print(1)\n", "found no write that can be followed to a read"),
        ("def (:\n", "expected a Python file"),
        ("dbutils.widgets.get('x')\nspark.table('a').show()\n", "found no write that can"),
        (
            "spark.createDataFrame([(1,)]).write.parquet('x')\n",
            "writes rows that come from no source",
        ),
        (
            "class Etl:\n  def run(self):\n    spark.read.csv('x').write.csv('y')\nEtl().run()\n",
            "class Etl reads or writes: move this into functions",
        ),
    ],
)
def test_a_job_that_cannot_be_ported(tmp_path, text, reason):
    """Nothing is written, and the reason is an error."""
    path = tmp_path / "my_job.py"
    path.write_text(text)
    with pytest.raises(InputError, match=reason):
        port(path)


def test_an_import_that_starts_the_job(ported):
    """Is the first thing to do, if the pipeline needs the job's functions."""
    text = START + (
        "spark = SparkSession.builder.getOrCreate()\n"
        "def clean(df):\n"
        "    return df.dropna()\n"
        "clean(spark.read.parquet('a.parquet')).write.parquet('b')\n"
    )
    assert ported(text).todo[0] == (
        "my_job.py:3: importing this file starts the job: put this line and those that run it under"
        ' if __name__ == "__main__":'
    )


def test_a_file_that_cannot_be_imported(ported):
    """A job such as 01-load.py has to be renamed first."""
    result = ported(FUNCTIONS, name="01-load.py")
    assert result.name == "load_pipeline"
    assert result.todo[0] == "01-load.py: rename it to load.py, so that it can be imported"


def test_expected_losses_carry_over(ported):
    """Each stage declares them, with the words of the audit's file."""
    where = ("my_job.py", "orders.csv", "inner join")
    losses = [
        ExpectedLoss(*where, "no partner for shop", 7, "closed shops"),
        ExpectedLoss(*where, "key NULL: shop", 1),
    ]
    result = ported(FUNCTIONS, expected=losses)
    line = {
        "inner join: no partner for shop": "closed shops",
        "inner join: key NULL: shop": "expected",
    }
    assert "EXPECTED" in result.todo[-1]
    module = ast.parse(result.text)
    (constant,) = [node for node in module.body if isinstance(node, ast.Assign)
                   and node.targets[0].id == "EXPECTED"]  # fmt: skip
    assert ast.literal_eval(constant.value) == line
    assert result.text.count("expected=EXPECTED") == result.text.count("@pipeline.stage(")


def test_the_command(tmp_path):
    """It writes beside the job or into a folder, says what is left, and overwrites nothing."""
    job = tmp_path / "my_job.py"
    job.write_text(FUNCTIONS)
    done = CliRunner().invoke(app, ["init", "--from", str(job), "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.output)
    assert answer["file"] == str(tmp_path / "my_job_pipeline.py")
    assert answer["next"] == f"cd {tmp_path} && ackledger check my_job_pipeline:pipeline"
    assert len(answer["left to do"]) == 7
    again = CliRunner().invoke(app, ["init", "--from", str(job)])
    assert "my_job_pipeline.py exists: expected no such file" in str(again.exception)
    done = CliRunner().invoke(app, ["init", str(tmp_path / "new"), "--from", str(job)])
    assert f"{at(FUNCTIONS, 'shops = spark')}: shops has no schema" in done.output
    assert f"PYTHONPATH={tmp_path} ackledger check" in done.output.replace("\n", "")
    assert (tmp_path / "new" / "my_job_pipeline.py").exists()


@pytest.mark.parametrize("arguments", [[], ["shop", "--expected", "losses.json"]])
def test_what_a_command_needs(arguments):
    """A folder or a job."""
    refused = CliRunner().invoke(app, ["init", *arguments])
    assert isinstance(refused.exception, InputError)
