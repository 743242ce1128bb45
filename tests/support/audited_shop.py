"""The job that README.md and docs/how-to/audit.md show, with data, as a project of a user."""

import random
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from ledger.auditing.report import AuditReport
from ledger.auditing.scripts.running import audit_script
from tests.support.pages import blocks
from tests.support.places import ROOT

SCRIPT = "my_job.py"
COMMAND = f"ackledger audit {SCRIPT}"
_SHOPS = "shop,country\ns1,DE\ns2,FR\ns3,IT\ns4,DE\n"


def write_shop(folder: Path) -> None:
    """Write the first code of the README, and what it reads: 5,000 orders, some of them without a
    state or a shop, of a closed shop, or with a bad number.
    """
    (folder / SCRIPT).write_text(blocks(ROOT / "README.md", "python")[0].code)
    pick = random.Random(1)
    lines = ["id,state,cents,shop"]
    for at in range(1, 5001):
        state = "" if pick.random() < 0.03 else pick.choice(["paid"] * 15 + ["open"] * 4)
        cents = "n/a" if pick.random() < 0.012 else pick.randrange(1, 40)
        shop = pick.choice(["", *["s31"] * 3, *["s1", "s2", "s3", "s4"] * 15])
        lines.append(f"{at},{state},{cents},{shop}")
    (folder / "orders.csv").write_text("\n".join(lines) + "\n")
    (folder / "shops.csv").write_text(_SHOPS)


@contextmanager
def working_in(folder: Path, spark: SparkSession) -> Iterator[None]:
    """Have relative paths, also those of a session that runs already, begin in a folder."""
    hadoop = spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
    files = hadoop.FileSystem.getLocal(spark._jsc.hadoopConfiguration())
    before = files.getWorkingDirectory()
    files.setWorkingDirectory(hadoop.Path(str(folder)))
    try:
        with chdir(folder):
            yield
    finally:
        files.setWorkingDirectory(before)


def shop_report(spark: SparkSession, folder: Path) -> AuditReport:
    """The report on the job, which is written to a new folder."""
    write_shop(folder)
    copies = folder / "copies"
    copies.mkdir()
    with working_in(folder, spark):
        return audit_script(Path(SCRIPT), [], copies)
