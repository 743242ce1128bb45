"""Faults of Spark's versions that a session avoids, with Spark's own options: the session of all
tests does without generated code, and does not have them.
"""

import json
import os
import subprocess
import sys

from tests.support import jvm, plain_udf
from tests.support.places import ROOT


def test_a_plain_udf_over_parquet_files_ends(database, tmp_path):
    """In a stage that reads them itself, and in an audit, which reads copies of its input: Spark
    4.2.0 waits for ever there unless an option is set.
    """
    url = database.url.render_as_string(hide_password=False)
    environment = {**os.environ, **jvm.brief(), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PYSPARK_SUBMIT_ARGS"] = "--driver-memory 512m pyspark-shell"
    environment.pop("PYSPARK_GATEWAY_PORT", None)
    command = [sys.executable, "-m", "tests.support.plain_udf", url, str(tmp_path)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == plain_udf.EXPECTED
