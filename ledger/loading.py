"""Find a pipeline by ``MODULE:NAME``, as the command line and spark-submit name it."""

import importlib
import os
import sys

from ledger.errors import DeclarationError
from ledger.pipeline import Pipeline
from ledger.steps import suggestion


def target_of(pipeline: Pipeline) -> str:
    """MODULE:NAME of a pipeline that is a global of the module that declared it, for commands to paste."""
    module = sys.modules.get(pipeline.module)
    for name, value in vars(module).items() if module else ():
        if value is pipeline:
            return f"{pipeline.module}:{name}"
    return "MODULE:PIPELINE"


def load_pipeline(target: str) -> Pipeline:
    """The pipeline that ``target``, such as ``jobs.flights:pipeline``, names; checked as a graph.

    Raises DeclarationError when there is no such module or pipeline, or it does not form one.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise DeclarationError(
            f"pipeline {target!r}: expected MODULE:NAME, for example jobs.flights:pipeline"
        )
    _make_importable(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not (module_name + ".").startswith(exc.name + "."):
            raise
        raise DeclarationError(
            f"pipeline {target!r}: no module {exc.name!r}; looked in {os.getcwd()} and PYTHONPATH"
        ) from exc
    pipelines = {key: value for key, value in vars(module).items() if isinstance(value, Pipeline)}
    if name not in pipelines:
        raise DeclarationError(
            f"pipeline {target!r}: module {module_name} has no pipeline {name!r}{suggestion(name, pipelines)}"
        )
    pipelines[name].steps()
    return pipelines[name]


def _make_importable(folder: str) -> None:
    """Here, and in the Python workers of a Spark that this process starts: they find functions by
    name."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if folder not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *known])
