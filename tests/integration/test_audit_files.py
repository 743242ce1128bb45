"""Scripts that touch files without Spark's readers and writers: Hadoop, Python, pandas, Arrow."""

import os
from pathlib import Path

import pandas
import pytest

from tests.support.audited_scripts import numbers, reasons, why

HADOOP = """\
from pyspark import SparkContext
jvm = spark._jvm
Path = jvm.org.apache.hadoop.fs.Path
fs = Path("x").getFileSystem(spark._jsc.hadoopConfiguration())
paid = orders.where("state = 'paid'")
"""


@pytest.fixture
def earlier(tmp_path) -> Path:
    """A folder that an earlier run of the job has written."""
    folder = tmp_path / "job" / "out"
    folder.mkdir(parents=True)
    for name in ("_SUCCESS", "part-00000-1.csv"):
        (folder / name).write_text("earlier\n")
        os.utime(folder / name, (1e9, 1e9))
    return folder


REMOVALS = {
    "hadoop": (f'{HADOOP}assert fs.delete(Path("out"), True)', "delete() of out at job.py:10"),
    "rmtree": ('import shutil; shutil.rmtree("out")', "rmtree() of out at job.py:5"),
    "from shutil": ("from shutil import rmtree as gone; gone('out')", "rmtree() of out at"),
    "a backup": (
        'if os.path.exists("out"):\n    os.rename("out", "out_1")',
        "rename() of out at job.py:6",
    ),
    "a file": (
        'import glob; [os.remove(each) for each in glob.glob("out/*")]',
        "remove() of out/",
    ),
    "a path": (
        'from pathlib import Path; Path("out/_SUCCESS").unlink()\n'
        'os.remove("out/part-00000-1.csv")',
        "unlink() of out/_SUCCESS at job.py:5",
    ),
}


@pytest.mark.parametrize("removal", REMOVALS)
def test_an_earlier_output_is_not_removed(audited, earlier, removal):
    """What Spark wrote before the audit stays, for its rows are not written again; the report says
    so.
    """
    text, note = REMOVALS[removal]
    mode = "overwrite" if "/" in note else "ignore"
    report = audited(f"{text}\norders.where(\"state = 'paid'\").write.mode({mode!r}).csv('out')\n")
    assert report.failure == ""
    assert numbers(report) == (12, 8, 2, 2)
    assert report.notes[0].startswith(note)
    assert all(each.endswith(" is left out") for each in report.notes)
    assert (earlier / "part-00000-1.csv").read_text() == "earlier\n"


def test_files_of_python_itself_are_removed(audited, tmp_path):
    """A script may write and remove files of its own, in UDFs, too."""
    report = audited(
        f"""
        import shutil, tempfile
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{{folder}}/a", "w") as file:
                file.write("1")
            os.rename(f"{{folder}}/a", f"{{folder}}/b")
            os.remove(f"{{folder}}/b")
        os.mkdir({str(tmp_path / "own")!r})
        shutil.rmtree({str(tmp_path / "own")!r})

        from os import remove
        def removed(n):
            with open(f"{tmp_path}/{{n}}", "w") as file:
                file.write("x")
            remove(f"{tmp_path}/{{n}}")
            return True

        orders.where(F.udf(removed, "boolean")("order_id")).write.csv("out")
        """
    )
    assert report.failure == ""
    assert report.notes == []
    assert numbers(report) == (12, 12, 0, 0)


def test_an_own_output_that_is_deleted(audited):
    """Its records have arrived nowhere, but for those that another output has read before, and it
    cannot be read any more.
    """
    report = audited(
        f"""
        {HADOOP.replace(chr(10), chr(10) + " " * 8)}
        import shutil
        orders.write.parquet("tmp")
        spark.read.parquet("tmp").where("state = 'paid'").write.parquet("paid")
        shutil.rmtree("tmp")
        orders.where("state = 'open'").write.parquet("open")
        fs.delete(Path("open"), True)
        spark.read.parquet("open")
        """
    )
    assert report.failure.startswith("stopped at job.py:18: reads ")
    assert "/open, which it has removed" in report.failure
    assert numbers(report) == (12, 8, 4, 0)
    assert reasons(report)["open is dropped"] == 2
    (loss,) = [loss for loss in report.losses if loss.operation == "delete()"]
    assert loss.place == "job.py:17"


STOPS = {
    'fs.rename(Path("out/part-00000-1.csv"), Path("out.csv"))': "calls rename() of org.apache",
    'fs.globStatus(Path("paid/part-*"))': "uses files of paid by globStatus()",
    'fs.listStatus(Path("paid"))': "uses files of paid by listStatus()",
    'fs.create(Path("x"))': "calls create() of org.apache.hadoop.fs.FileSystem",
    "jvm.org.apache.hadoop.fs.FileUtil.fullyDelete(jvm.java.io.File('out'))": (
        "calls fullyDelete() of org.apache.hadoop.fs.FileUtil"
    ),
    "jvm.java.io.File('out/_SUCCESS').delete()": "calls delete() of java.io.File",
    "jvm.java.io.FileWriter('out/_SUCCESS')": "calls a constructor() of java.io.FileWriter",
    "jvm.java.nio.file.Files.delete(jvm.java.io.File('out/_SUCCESS').toPath())": (
        "calls delete() of java.nio.file.Files"
    ),
    'paid._jdf.write().mode("overwrite").csv("out")': "calls csv() of org.apache.spark.sql.DataF",
    'spark._jsparkSession.sql("DROP TABLE t")': "calls sql() of org.apache.spark.sql.SparkSession",
    'paid.rdd._jrdd.saveAsTextFile("x")': "calls saveAsTextFile() of org.apache.spark.api.java",
    'os.rename("out/part-00000-1.csv", "out.csv"); open("out.csv")': "uses out.csv by open(), and",
    'import shutil; shutil.copy("orders.csv", "out/part-00000-1.csv")': "replaces out/part-00000",
    'import glob; glob.glob("paid/*.parquet")': "uses files of paid by glob()",
    'fs.delete(Path("s3a://lake/a/day=1"), True); spark.read.parquet("s3a://lake/a")': (
        "reads s3a://lake/a, and delete() of s3a://lake/a/day=1 at job.py:"
    ),
    'os.listdir("paid")': "uses files of paid by listdir()",
    'open("paid/part-0")': "uses files of paid by open()",
    'os.remove("paid/part-0")': "removes a part of paid by remove()",
}


@pytest.mark.parametrize("text", STOPS)
def test_changes_that_end_the_script(audited, earlier, text):
    """Nothing of an earlier output changes, and no file of a copy's place is used."""
    report = audited(f'{HADOOP}paid.write.parquet("paid")\ntry: {text}\nexcept Exception: pass\n')
    assert report.failure.startswith("stopped at job.py:11: ")
    assert STOPS[text] in report.failure
    assert numbers(report) == (12, 8, 2, 2)
    assert (earlier / "part-00000-1.csv").read_text() == "earlier\n"


def test_calls_of_java_that_change_nothing(audited):
    """They are executed; folders are not made, and the session is not stopped."""
    report = audited(
        f"""
        {HADOOP.replace(chr(10), chr(10) + " " * 8)}
        assert fs.exists(Path(f"{{HERE}}/orders.csv")) and not fs.exists(Path("paid"))
        assert [str(s.getPath().getName()) for s in fs.listStatus(Path(HERE))] != []
        fs.mkdirs(Path("new"))
        paid.write.parquet("paid")
        assert fs.exists(Path("paid"))
        spark._jsparkSession.stop()
        assert jvm.java.lang.Math.max(1, 2) == 2
        """
    )
    assert report.failure == ""
    assert report.notes == ["mkdirs() of new at job.py:14 is left out"]
    assert numbers(report) == (12, 8, 2, 2)


def test_a_source_by_a_link_has_the_name_of_the_link(audited, tmp_path):
    """Another day's folder does not change the name, by which losses are expected."""
    (tmp_path / "job" / "2026-10-01").mkdir()
    (tmp_path / "job" / "2026-10-01" / "a.csv").write_text("n\n1\n")
    (tmp_path / "job" / "latest").symlink_to("2026-10-01")
    report = audited(
        """
        spark.read.csv(f"{HERE}/latest", header=True).where("n > 0").write.parquet("out")
        spark.read.csv(f"{HERE}/latest/a.csv", header=True).where("n > 1").write.parquet("out2")
        """
    )
    assert [each.source.name for each in report.results] == ["latest", "latest/a.csv"]


def test_sources_stay(audited, tmp_path):
    """What a job moves to an archive or removes once Spark has read it stays, for its rows are not
    written; the script sees it gone.
    """
    landing = tmp_path / "job" / "landing"
    landing.mkdir()
    (tmp_path / "job" / "archive").mkdir()
    (tmp_path / "job" / "archive" / "part-00000").touch()  # of a job that Spark ran
    for name in ("a", "b", "c"):
        (landing / f"{name}.csv").write_text("n\n1\n")
    report = audited(
        """
        import glob, shutil
        from pathlib import Path
        for file in sorted(glob.glob(f"{HERE}/landing/*.csv")):
            spark.read.csv(file, header=True).write.mode("append").parquet("bronze")
            os.makedirs("archive", exist_ok=True)
            if file.endswith("a.csv"):
                to = shutil.move(file, f"{HERE}/archive")
            elif file.endswith("b.csv"):
                Path(file).rename(f"{HERE}/archive/b.csv")
            else:
                os.remove(file)
            assert not os.path.exists(file)
        shutil.rmtree("landing")
        assert not Path("landing").exists()
        spark.read.csv(f"{HERE}/archive")
        """
    )
    assert report.failure.startswith("stopped at job.py:20: reads ")
    assert [each.split(" at ")[0] for each in report.notes if "left out" in each] == [
        "move() of landing/a.csv",
        "rename() of landing/b.csv",
        "remove() of landing/c.csv",
        "rmtree() of landing",
    ]
    assert sorted(each.name for each in landing.iterdir()) == ["a.csv", "b.csv", "c.csv"]
    assert [result.arrived for result in report.results] == [1, 1, 1]


UNWRITTEN = {
    "an RDD": (
        'rows = spark.sparkContext.textFile(f"{HERE}/in")\n'
        'spark.createDataFrame(rows.map(lambda line: (line,)), "a STRING").write.parquet("out")'
    ),
    "JSON of an RDD": (
        'spark.read.json(spark.sparkContext.textFile(f"{HERE}/in/*")).write.parquet("out")'
    ),
    "a path in SQL": (
        'orders.write.parquet("out")\n'
        'rows = spark.sql(f"SELECT * FROM text.`{HERE}/{{in/*,x/y}}`")\n'
        'rows.toPandas().to_csv("out.csv")'
    ),
    "a path in an expression": (
        'spark.range(1).selectExpr(f"(SELECT count(*) FROM text.`{HERE}/in`) AS n").collect()'
    ),
}


@pytest.mark.parametrize("read", UNWRITTEN)
def test_sources_stay_that_spark_has_read_in_other_ways(audited, tmp_path, read):
    """Their rows are not written, whether a plan of an output has the files or not."""
    (tmp_path / "job" / "in").mkdir()
    (tmp_path / "job" / "in" / "a.txt").write_text('{"a": 1}\n')
    report = audited(f'{UNWRITTEN[read]}\nimport shutil; shutil.rmtree("in")')
    assert report.failure == ""
    assert any(each.startswith("rmtree() of in at") for each in report.notes), report.notes
    assert (tmp_path / "job" / "in" / "a.txt").exists()


def test_nothing_is_written_in_place_of_a_source(audited, tmp_path):
    """The file that a script has renamed to a backup is the only one with the records."""
    before = (tmp_path / "job" / "orders.csv").read_text()
    report = audited(
        """
        orders.where("state = 'paid'").write.parquet("out")
        os.rename("orders.csv", "orders.csv.bak")
        with open("orders.csv", "w") as file:
            file.write("order_id,shop,state,cents")
        """
    )
    assert report.failure.startswith("stopped at job.py:8: uses ")
    assert "orders.csv by open(), and rename() of orders.csv at job.py:7 is" in report.failure
    assert numbers(report) == (12, 8, 2, 2)
    assert (tmp_path / "job" / "orders.csv").read_text() == before


def test_an_output_below_a_folder_that_is_removed_is_written(audited, earlier):
    """Although files are there for Spark, which writes nothing where something exists."""
    (earlier / "a").mkdir()
    report = audited(
        """
        import shutil
        shutil.rmtree("out")
        orders.where("state = 'paid'").write.mode("ignore").parquet("out/a")
        assert spark.read.parquet("out/a").count() == 8
        """
    )
    assert (report.failure, numbers(report)) == ("", (12, 8, 2, 2))


def test_folders_that_the_script_has_written(audited, earlier):
    """They are there for Python, and those that it has removed are not, until it makes them."""
    report = audited(
        f"""
        {HADOOP.replace(chr(10), chr(10) + " " * 8)}
        import shutil
        from os.path import exists, isdir, join
        out = join(HERE, "out")
        if exists(out):
            shutil.rmtree(out)
        assert not exists(out) and not isdir(out) and not fs.exists(Path(out))
        os.makedirs(out)
        assert isdir(out) and not exists(join(out, "_SUCCESS"))
        for state in ("paid", "open"):
            orders.where(F.col("state") == state).write.parquet(join(out, state))
        assert exists(join(out, "paid", "_SUCCESS")) and fs.exists(Path(join(out, "paid")))
        for folder in (join(out, "open"), join(out, "paid")):
            spark.read.parquet(folder).where("shop = 's1'").write.parquet(folder + "1")
        os.makedirs(join(out, "paid"), exist_ok=True)
        shutil.rmtree(join(out, "paid1"))
        assert not exists(join(out, "paid1"))
        exists(join(out, "paid", "part-0"))
        """
    )
    assert "part-0 in " in report.failure
    assert numbers(report)[:2] == (12, 2)
    assert (earlier / "part-00000-1.csv").read_text() == "earlier\n"


OWN_FILES = {
    'spark.sql(f"SELECT * FROM csv.`{HERE}/{{x/y,out}}`")': "in SQL, where it has written out",
    'spark.sparkContext.textFile(f"{HERE}/out")': "by textFile()",
    'import pandas; pandas.read_parquet("out")': "by read_parquet()",
    'import pyarrow.parquet as pq; pq.read_table("out")': "by read_table()",
    'import pyarrow.dataset as ds; ds.dataset("out")': "by dataset()",
    'fs.listStatus(Path(f"{HERE}"))': "by listStatus()",
    "import pyarrow.dataset as ds; ds.dataset(HERE)": "by dataset()",
    'os.remove("orders.csv"); spark.sparkContext.textFile(f"{HERE}/orders.csv")': (
        "orders.csv by textFile(), and remove() of orders.csv at job.py:12 is left out"
    ),
    'fs.exists(Path(f"{HERE}/out/shop=s1"))': "looks for ",
    'pandas.DataFrame({"a": [1]}).to_csv("a.csv"); spark.read.csv(f"{HERE}/a.csv")': "reads ",
    'pandas.DataFrame({"a": [1]}).to_csv("a.csv"); open("a.csv")': (
        "a.csv by open(), and to_csv() of a.csv at"
    ),
}


def test_files_of_an_earlier_run_are_not_read(audited, earlier):
    """Rows that only the copy has are not read from the place where they would be."""
    (earlier.parent / "a.csv").write_text("earlier\n")
    for text, failure in OWN_FILES.items():
        report = audited(f"{HADOOP}import pandas\npaid.write.mode('overwrite').csv('out')\n{text}")
        assert report.failure.startswith("stopped at job.py:12: "), (text, report.failure)
        assert failure in report.failure


def test_files_that_python_changes(audited, tmp_path):
    """A file that was there before is named; one of the script's own is not."""
    for name in ("mark", "old"):
        (tmp_path / "job" / name).write_text("2025")
    report = audited(
        f"""
        open("mark", "w").write("2026")
        open({str(tmp_path / "new")!r}, "w").write("2026")
        os.remove({str(tmp_path / "new")!r})
        os.rename("old", "older"); os.rename("older", "old")
        orders.where("state = 'paid'").write.parquet("paid")
        """
    )
    assert report.notes == [
        "open() of mark at job.py:6 is executed: Python changes it",
        "rename() of old at job.py:9 is executed: Python changes it",
        "rename() of older at job.py:9 is executed: Python changes it",
    ]


def test_what_the_audit_does_not_see_is_noted(audited, tmp_path):
    """The script may exit, and a UDF may have the module of Arrow's file systems."""
    report = audited(
        f"""
        import subprocess, sys
        from pyarrow import fs
        os.system("true done")
        def size(n):
            return fs.LocalFileSystem().get_file_info("/").is_file
        large = F.udf(size, "boolean")("order_id")
        orders.where(large | (F.col("state") == "paid")).write.csv("out")
        subprocess.run(["rm", "-r", {str(tmp_path / "gone")!r}])
        fs.LocalFileSystem().create_dir({str(tmp_path / "new")!r})
        sys.exit(3)
        """
    )
    assert report.failure == "ended with 3"
    unseen = "is executed: the audit does not see what it writes or removes"
    assert report.notes == [
        f"`true done` at job.py:8 {unseen}",
        f"`{f'rm -r {tmp_path}/gone'[:47]}...` at job.py:13 {unseen}",
        f"pyarrow.fs at job.py:14 {unseen}",
    ]
    assert numbers(report) == (12, 8, 2, 2)


DRIVER = {
    "JSON": 'open(f"{FILES}/a", "w").write(str(others.toJSON().collect()))',
    "the last rows": 'open(f"{FILES}/a", "w").write(str(others.tail(9)))',
    "collect": 'with open(f"{FILES}/a", "w") as file:\n    file.write(str(others.collect()))',
    "an iterator": (
        "from pathlib import Path\nrows = list(others.toLocalIterator())\n"
        'Path(f"{FILES}/a").write_text(str(rows))'
    ),
    "arrow": ('import pyarrow.parquet as pq\npq.write_table(others.toArrow(), f"{FILES}/a")'),
    "arrow as csv": (
        'from pyarrow.csv import write_csv\nwrite_csv(others.toArrow(), f"{FILES}/a")'
    ),
    "a file for pandas": (
        'with open(f"{FILES}/a", "w") as file:\n    others.toPandas().to_csv(file)'
    ),
    "a buffer": "import io\nothers.toPandas().to_csv(io.StringIO())",
    "rows": 'open(f"{FILES}/a", "w").write(str(others.take(9)))',
}


@pytest.mark.parametrize("text", DRIVER)
def test_rows_that_python_writes(audited, tmp_path, text):
    """A record that may be in a file of Python's is not claimed to be lost."""
    (tmp_path / "files").mkdir()
    report = audited(
        f"FILES = {str(tmp_path / 'files')!r}\nothers = orders.where(\"state = 'open'\")\n"
        f"{DRIVER[text]}\norders.where(\"state = 'paid'\").write.parquet('paid')\n"
    )
    assert report.failure == ""
    (result,) = report.results
    assert result.unknown.startswith("not known: rows went through ")
    assert report.lost_records == 0
    written, *_ = why(report)
    assert written == ("a StringIO" if text == "a buffer" else f"{tmp_path}/files/a")


def test_rows_that_python_has(audited, tmp_path):
    """It is said that they may have arrived where the audit does not look; logs have none."""
    report = audited(
        f"""
        import logging
        logging.getLogger("job").addHandler(logging.FileHandler({str(tmp_path / "log")!r}))
        print(orders.collect(), spark.createDataFrame([(1,)], "a int").collect())
        orders.limit(3).write.csv("out")
        """
    )
    assert report.notes == [
        "rows went through collect() at job.py:8: where Python sends them is not known, and they "
        "may have arrived there"
    ]
    assert numbers(report) == (12, 3, 0, 9)


class _Book(pandas.ExcelWriter):
    """Writes cells as text, in place of a library for Excel."""

    _engine, _supported_extensions = "text", (".xltext",)
    sheets, book = {}, None

    def _write_cells(self, cells, sheet_name=None, **_: object) -> None:
        for cell in cells:
            self._handles.handle.write(f"{sheet_name} {cell.val}\n".encode())

    def _save(self) -> None:
        pass


def test_books_of_pandas(audited, tmp_path):
    """The file is not written, and its rows are noted as an output that is not followed."""
    pandas.io.excel.register_writer(_Book)
    (tmp_path / "job" / "old.xltext").write_text("earlier")
    report = audited(
        """
        import pandas
        with pandas.ExcelWriter("new.xltext", engine="text") as book:
            orders.toPandas().to_excel(book, sheet_name="all")
        with pandas.ExcelWriter("old.xltext", engine="text", mode="a") as book:
            orders.toPandas().to_excel(book)
        orders.where("state = 'paid'").write.parquet("paid")
        """
    )
    assert report.failure == ""
    reason = "pandas ExcelWriter() is left out: its rows went through the driver"
    assert why(report) == {"new.xltext": reason, "old.xltext": reason}
    assert (tmp_path / "job" / "old.xltext").read_text() == "earlier"
    (result,) = report.results
    assert result.unknown.startswith("not known: rows went through toPandas() at ")


def test_models_are_not_saved(audited):
    """Records that only a model was fitted to are not claimed to be lost."""
    report = audited(
        """
        from pyspark.ml import Pipeline, PipelineModel
        from pyspark.ml.feature import StringIndexer
        model = Pipeline(stages=[StringIndexer(inputCol="shop", outputCol="n")]).fit(orders)
        model.transform(orders).where("state = 'paid'").write.parquet("paid")
        model.write().overwrite().save("model")
        model.stages[0].save("stage")

        class Own(StringIndexer):
            def _fit(self, dataset):
                dataset.write.csv("fitted")

        Own().fit(orders)
        PipelineModel.load("model")
        """
    )
    assert report.failure.startswith("stopped at job.py:18: loads model, a model that the audit")
    assert [*why(report)] == ["model", "stage"]
    assert [output.name for output in report.outputs][:2] == ["paid", "fitted"]
    (result,) = report.results
    assert result.unknown == "not known: rows went through fit() at job.py:17"
