"""Audit a function of frames: which records of its inputs are not in what it returns, and why."""

import inspect
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from ledger.auditing.attribution import Attribution, in_few_shuffles
from ledger.auditing.outputs import AuditOutput
from ledger.auditing.report import AuditReport
from ledger.auditing.results import judged
from ledger.auditing.routes import sources_in
from ledger.auditing.sources import Sources
from ledger.errors import CarryError, InputError
from ledger.lineage.carrier import STREAMING, TOO_DEEP
from ledger.lineage.carry import require_classic, require_frame
from ledger.lineage.catalyst import Catalyst
from ledger.lineage.sites import Sites
from ledger.lineage.spark_faults import avoid_known_faults


def audit(
    function: Callable[..., DataFrame],
    *inputs: DataFrame,
    references: Mapping[str, object] | None = None,
    folder: str | Path | None = None,
) -> AuditReport:
    """Call a function, and say which records of its inputs are in no row of its result.

    The function runs once, on copies of its inputs, and needs no change. Its result is computed
    again for the records that are missing, to find the operation that lost each.

    Args:
        function: takes frames and returns a frame.
        *inputs: frames whose records are followed, as its first arguments.
        references: its other arguments by name. Their records are not followed.
        folder: an existing local folder for the copies of the inputs, which are removed with the
            report. The executors of a cluster have to see it.

    Raises:
        CarryError: rows cannot be followed through an operation of the function.
        InputError: there is no input, an input cannot be copied, or the executors do not see the
            folder.
    """
    if not inputs:
        raise InputError("audit() needs an input: audit(function, frame, references={...})")
    require_classic(function, inputs)
    target = _folder(inputs[0].sparkSession, folder)
    try:
        return _audited(function, inputs, references or {}, target)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _audited(
    function: Callable[..., DataFrame],
    inputs: Sequence[DataFrame],
    references: Mapping[str, object],
    folder: Path,
) -> AuditReport:
    spark = inputs[0].sparkSession
    avoid_known_faults(spark)
    catalyst, sites = Catalyst(spark), Sites()
    sources = Sources(catalyst, folder)
    weakref.finalize(sources, shutil.rmtree, folder, ignore_errors=True)
    names = _names(function, len(inputs))
    frames = [sources.add(name, frame) for name, frame in zip(names, inputs, strict=True)]
    for name, value in references.items():
        if isinstance(value, DataFrame):
            sources.refer(name, value)
    with sites.watching():
        result = function(*frames, **references)
    require_frame(function, result, spark)
    try:
        original = catalyst.analyzed(result)
        if original.isStreaming():
            raise CarryError(STREAMING)
        plan = catalyst.without_ctes(original)
        places = sites.places(catalyst, plan, original)
        return report_of(Attribution(catalyst, sources, places, plan), _name(function))
    except RecursionError:
        raise CarryError(TOO_DEEP) from None


def report_of(attribution: Attribution, title: str = "") -> AuditReport:
    """Return the report on each record of an output's sources. Raises CarryError if the plan does
    not use a source, or if its rows cannot be followed.
    """
    _require_all(attribution)
    output = AuditOutput("the result", attribution.place(attribution.plan))
    output.follow(attribution)
    with in_few_shuffles(attribution.sources):
        return judged(attribution.sources, [output], title=title)


def _require_all(attribution: Attribution) -> None:
    """Raise CarryError for an input that is nowhere in the plan."""
    used = sources_in(attribution, attribution.plan)
    for source in attribution.sources.sources:
        if source.number not in used:
            raise CarryError(
                f"the function does not use its input {source.name!r}, or takes it out of the plan "
                "by collect(), toPandas(), rdd or checkpoint(): expected each input in the plan of "
                "the result. Pass what is not followed in references="
            )


def _folder(spark: SparkSession, folder: str | Path | None) -> Path:
    """Return a new folder for the copies. Raises InputError if none can be made, if executors would
    not see it, or if its path has wildcards.
    """
    master = str(spark.sparkContext.master)
    if folder is None and not master.startswith("local"):
        raise InputError(
            f"the executors of {master} do not see a temporary folder of this "
            "machine: pass folder=, a folder that they and this process see"
        )
    try:
        target = Path(tempfile.mkdtemp(prefix="ackledger-audit-", dir=folder)).absolute()
    except OSError as error:
        raise InputError(f"no folder for copies of the inputs can be made: {error}") from error
    if set(str(target)) & set("*?[]{}"):
        shutil.rmtree(target, ignore_errors=True)
        raise InputError(f"{target}: expected a folder without *, ?, [, ], {{ and }} in its path")
    return target


def _name(function: Callable[..., object]) -> str:
    name = str(getattr(function, "__name__", type(function).__name__))
    return "a function" if name == "<lambda>" else name


def _names(function: Callable[..., object], number: int) -> list[str]:
    """Return the names of a function's first parameters. Inputs without a name are ``input 1`` and
    so on.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        parameters = []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in positional]
    names += [f"input {at + 1}" for at in range(len(names), number)]
    return names[:number]
