"""Pipelines that ``ackledger init --from`` writes for the text of a job."""

import importlib.util
import subprocess
import sys

from ledger.cli.porting.writing import port


def ported_in(folder, text, name="my_job.py", **options):
    """Port a job's text in a folder; return the result. Imports of the written module must be
    used.
    """
    path = folder / name
    path.write_text(text)
    result = port(path, **options)
    written = folder / f"{result.name}.py"
    written.write_text(result.text)
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F"]
    command = [*ruff, "--ignore", "F821", str(written)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + result.text
    return result


def pipeline_of(path, monkeypatch):
    """Import a written module; return its pipeline."""
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.delitem(sys.modules, "my_job", raising=False)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.pipeline.steps()
    return module.pipeline
