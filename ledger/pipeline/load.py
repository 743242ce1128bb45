"""Find a pipeline by ``MODULE:NAME``, as the command line and spark-submit name it."""

import importlib
import os
import sys
from weakref import WeakKeyDictionary

from ledger.core.commands import ANY_TARGET
from ledger.errors import DeclarationError, suggestion
from ledger.pipeline.pipeline import Pipeline

_LOADED: WeakKeyDictionary[Pipeline, str] = WeakKeyDictionary()  # under which name


def load_pipeline(target: str) -> Pipeline:
    """Import the pipeline at ``target``, such as ``jobs.flights:pipeline``, and check its graph.

    Raises DeclarationError if there is no such module or pipeline, or if its graph is not valid.
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
            f"pipeline {target!r}: module {module_name} has no pipeline"
            f" {name!r}{suggestion(name, pipelines)}"
        )
    pipelines[name].steps()
    _LOADED[pipelines[name]] = target
    return pipelines[name]


def _make_importable(folder: str) -> None:
    """Add a folder to the import path of this process, and of the Python workers of a Spark that it
    starts, because workers import functions by name.
    """
    if folder not in sys.path:
        sys.path.insert(0, folder)
    folders = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if folder not in folders:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *folders])


def target_of(pipeline: Pipeline) -> str | None:
    """Return MODULE:NAME of a pipeline. None if it is not a global of its module, or if other
    processes cannot import that module.
    """
    pipeline = pipeline.declared
    if pipeline in _LOADED:
        return _LOADED[pipeline]
    module = sys.modules.get(pipeline.module)
    names = [name for name, value in vars(module or sys).items() if value is pipeline]
    return f"{pipeline.module}:{names[0]}" if names and is_importable(pipeline.module) else None


def known_target(pipeline: Pipeline) -> str:
    """Return ``target_of`` the pipeline for use in a command; a placeholder if it is None."""
    return target_of(pipeline) or ANY_TARGET


def is_importable(module: str) -> bool:
    """Return whether other processes can import a module, or the module of an object. They cannot
    import a script, or a DAG file, which Airflow loads under another name.
    """
    return not module.startswith(("unusual_prefix_", "__main__"))
