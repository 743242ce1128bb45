"""Program of ``spark-submit`` that measures a driver's CPU seconds: five steps of a small
batch, one after the other.

It writes the CPU seconds of its JVM, of itself and of the Python workers at the end of each
part, as JSON, to the file that is its argument.
"""

import json
import os
import sys
from pathlib import Path

import psutil

_JVM = psutil.Process(os.getppid())


def _spent() -> dict[str, float]:
    """CPU seconds until now: of the JVM, of this process, and of the workers that the JVM has
    started.
    """
    own, workers = psutil.Process(), 0.0
    for process in _JVM.children(recursive=True):
        if process.pid != own.pid and process.is_running():
            times = process.cpu_times()
            workers += times.user + times.system + times.children_user + times.children_system
    jvm, cpu = _JVM.cpu_times(), own.cpu_times()
    return {"jvm": jvm.user + jvm.system, "python": cpu.user + cpu.system, "workers": workers}


def main() -> None:
    """Import, connect, start a session, run the steps of the batch whose number is the second
    argument.
    """
    target, batch_id = Path(sys.argv[1]), int(sys.argv[2])
    parts = [("JVM and Python", _spent())]
    from ledger import run_step  # noqa: F401 - what a driver imports
    from ledger.batch.step_runs import Attempt
    from ledger.execution import run_step as run
    from ledger.pipeline.load import load_pipeline
    from ledger.settings import Settings
    from ledger.spark.job import Job
    from ledger.spark.session import build_session
    from ledger.store.upgrade import connect

    pipeline = load_pipeline("benchmarks.small_pipelines:batch")
    parts.append(("imports", _spent()))
    settings = Settings()
    database = connect(settings)
    parts.append(("connection", _spent()))
    session = build_session("driver")
    parts.append(("session", _spent()))
    # What any Spark pays once: its planner, its code generation, their classes.
    session.range(1000).selectExpr("id % 7 AS k", "id").groupBy("k").sum("id").collect()
    parts.append(("first query", _spent()))
    job = Job(session, database, settings, pipeline)
    for step in pipeline.steps():
        run(job, batch_id, step.name, Attempt())
        parts.append((f"step {step.name}", _spent()))
    session.stop()
    parts.append(("stop", _spent()))
    target.write_text(json.dumps(parts))


if __name__ == "__main__":
    main()
