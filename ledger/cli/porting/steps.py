"""The steps of a job: its sources, references, stages and sinks, and their names."""

import ast
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from keyword import iskeyword
from typing import Literal

from ledger.cli.porting.flow import Flow, Statement, Value, Write
from ledger.cli.porting.reading import JobFile

# Words that do not tell what the rows are, in names of variables, paths and functions.
_VAGUE = {"", "df", "dfs", "sdf", "data", "dataframe", "frame", "result", "results", "res", "new"}
_VAGUE |= {"output", "out", "input", "tmp", "temp", "final", "main", "run", "job", "etl", "process"}
_VAGUE |= {"get", "load", "read", "extract"}
_NO_STEM = re.compile(r"^\w+:|\.(csv|json|parquet|gz|txt)\b|\{\{.*?\}\}")
# Joins that keep rows of the right side that have no partner.
_OUTER = {"right", "outer", "full", "fullouter", "full_outer", "rightouter", "right_outer"}
# How a frame is made from a read. A derived one, which has a name of its own, is no lookup unless
# it is broadcast.
_Made = Literal["read", "derived", "broadcast"]
# Returns whether an expression that gets a name or is returned is only looked up under that name;
# None for any other expression.
_Named = Callable[[ast.AST, _Made], bool | None]


@dataclass(frozen=True)
class Stage:
    """A stage: the statements that make ``value`` from the frames that it reads."""

    value: Value
    statements: list[Statement]
    reads: list[Value]
    references: list[Value]


@dataclass
class Steps:
    """The steps of a pipeline, and the names of these and of its sinks."""

    sources: list[Value]
    references: list[Value]
    stages: list[Stage] = field(default_factory=list)
    names: dict[Value | Write, str] = field(default_factory=dict)


def steps_of(flow: Flow, taken: set[str]) -> Steps:
    """Divide the statements of a flow into steps. ``taken``: names that no step may have.

    A stage is made for each result of a function of frames, each written frame, and each frame that
    two stages need. All other statements are copied to the stages that need them. Writes of rows
    that come from no source are removed from the flow, and noted as left to do.
    """
    order = {value: at for at, each in enumerate(flow.statements) for value in each.values}
    needed = _ancestors(write.value for write in flow.writes)
    reads = sorted((each for each in needed if each.kind == "read"), key=order.__getitem__)
    references = [each for each in reads if _is_lookup(each, needed, flow)]
    if len(references) == len(reads):  # there would be nothing to track
        references = []
    sources = [each for each in reads if each not in references]
    tracked = {each for each in needed if not _ancestors([each]).keys().isdisjoint(sources)}
    frames = {each for each in tracked if each.is_frame and each.kind != "read"}
    for write in [*flow.writes]:
        if write.value not in tracked:
            flow.todo[f"{write.place}: writes rows that come from no source: it is left out"] = None
            flow.writes.remove(write)
    written = [each.value for each in flow.writes if each.value in frames]
    cuts = dict.fromkeys([*(each for each in frames if each.kind == "call"), *written])
    while True:
        stages = [_stage(cut, cuts, references, flow, order) for cut in cuts]
        slices = [value for stage in stages for each in stage.statements for value in each.values]
        shared = [each for each in frames if slices.count(each) > 1 and each not in cuts]
        if not shared:
            break
        cuts[max(shared, key=order.__getitem__)] = None
    stages.sort(key=lambda stage: order[stage.value])
    steps = Steps(sources, references, stages)
    _name(steps, flow, taken)
    return steps


def _ancestors(values: Iterable[Value]) -> dict[Value, None]:
    """Return these values, and all values that they are made from."""
    ancestors: dict[Value, None] = {}
    pending = [*values]
    while pending:
        value = pending.pop(0)
        if value not in ancestors:
            ancestors[value] = None
            pending += value.statement.inputs if value.kind != "outside" else []
    return ancestors


def _stage(
    cut: Value,
    cuts: Iterable[Value],
    references: list[Value],
    flow: Flow,
    order: dict[Value, int],
) -> Stage:
    inputs: dict[Value, None] = {}
    needed: set[Statement] = set()
    pending = [cut]
    while pending:
        value = pending.pop()
        if value.statement not in needed and value.kind != "outside":
            needed.add(value.statement)
            for each in value.statement.inputs:
                if each.kind == "read" or (each in cuts and each is not cut):
                    inputs[each] = None
                else:
                    pending.append(each)
    ordered = sorted(inputs, key=order.__getitem__)
    reads = [each for each in ordered if each not in references]
    statements = [each for each in flow.statements if each in needed]
    return Stage(cut, statements, reads, [each for each in ordered if each in references])


def _is_lookup(value: Value, needed: Collection[Value], flow: Flow, made: _Made = "read") -> bool:
    """Return whether a frame is only the right side of joins. Frames that are made from it and get
    a name are followed: they have to be broadcast, too.
    """
    statements = dict.fromkeys(each.statement for each in needed)
    uses = [(each, at) for each in statements for at, used in each.uses.items() if used is value]
    is_hidden = any(value in (*each.before.values(), *each.views) for each in statements)
    is_written = any(write.value is value for write in flow.writes)
    if not uses or is_hidden or is_written:
        return False

    def named(node: ast.AST, made: _Made, statement: Statement) -> bool | None:
        if node not in (statement.node, getattr(statement.node, "value", None)):
            return None
        values = [each for each in statement.values if each in needed]
        return all(_is_lookup(each, needed, flow, made) for each in values)

    return all(
        _is_right_side(node, flow.job, made, partial(named, statement=statement))
        for statement, node in uses
    )


def _is_right_side(node: ast.AST, job: JobFile, made: _Made, named: _Named) -> bool:
    """Return whether a use of a frame looks it up, in place or in the function that takes it."""
    is_lookup = named(node, "derived" if made == "read" else made)
    if is_lookup is not None:
        return is_lookup
    parent = job.parents.get(node)
    if isinstance(parent, ast.Attribute | ast.Subscript):
        outer = job.parents[parent]
        if not isinstance(outer, ast.Call) or outer.func is not parent:
            return getattr(parent, "attr", "") not in ("write", "writeStream", "rdd")  # a column
        return getattr(parent, "attr", "") != "join" and _is_right_side(outer, job, made, named)
    if not isinstance(parent, ast.Call) or node not in parent.args:
        return False
    name = ast.unparse(parent.func).rpartition(".")[2]
    if name == "join":
        how = [*parent.args[2:], *(each.value for each in parent.keywords if each.arg == "how")]
        is_constant = all(isinstance(each, ast.Constant) for each in how)
        kinds = {str(getattr(each, "value", "")).lower() for each in how}
        return made != "derived" and is_constant and not kinds & _OUTER
    if name == "broadcast":
        return _is_right_side(parent, job, "broadcast", named)
    function = job.function_of(parent)
    at = parent.args.index(node)
    return function is not None and _is_looked_up_in(function, at, parent, job, made, named)


def _is_looked_up_in(
    function: ast.FunctionDef,
    at: int,
    call: ast.Call,
    job: JobFile,
    made: _Made,
    named: _Named,
) -> bool:
    """Return whether a function only looks up the argument at a position, or returns it to a call
    that does.
    """
    seen: set[tuple[str, _Made]] = set()

    def named_in(node: ast.AST, made: _Made) -> bool | None:
        match job.parents.get(node):
            case ast.Return():
                return _is_right_side(call, job, made, named)
            case ast.Assign(targets=[ast.Name(id=name)]):
                return is_looked_up(name, made)
        return None

    def is_looked_up(name: str, made: _Made) -> bool:
        if (name, made) in seen:
            return True
        seen.add((name, made))
        names = (each for each in ast.walk(function) if isinstance(each, ast.Name))
        uses = [each for each in names if each.id == name and isinstance(each.ctx, ast.Load)]
        return bool(uses) and all(_is_right_side(each, job, made, named_in) for each in uses)

    every = function.args.args
    return at < len(every) and is_looked_up(every[at].arg, made)


def _name(steps: Steps, flow: Flow, taken: set[str]) -> None:
    """Name each step after its variable, or else its function, table or path."""
    used = {*taken}

    def free(*names: str) -> str:
        wanted = [clean(each) for each in names if not _is_vague(each)] or ["rows"]
        numbered = (f"{wanted[0]}_{number}" for number in range(2, 9999))
        name = next(each for each in (*wanted, *numbered) if each not in used)
        used.add(name)
        return name

    def stem(path: str | None) -> str:
        parts = reversed(re.split(r"[/.]", _NO_STEM.sub("", path or "")))
        return next((part for part in parts if not _is_vague(part)), "")

    for read in (*steps.sources, *steps.references):
        assert read.read is not None
        path = flow.template_of(read.read.location, read.statement.scope)
        steps.names[read] = free(*read.names, stem(path), read.function)
    for stage in steps.stages:
        value, base = stage.value, steps.names[stage.reads[0]].removesuffix("_rows")
        stems = [stem(each.template) for each in flow.writes if each.value is value]
        outputs = [f"{each}_rows" for each in stems if each]
        functions = (value.function, *outputs, value.statement.scope.function)
        steps.names[value] = free(value.name, *value.names, *functions, f"{base}_rows")
    for write in flow.writes:
        steps.names[write] = free(stem(write.template), f"{steps.names[write.value]}_out")


def _is_vague(name: str) -> bool:
    """Return whether all words of a name are vague, as those of ``df2`` and ``finalDF``."""
    words = clean(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name))
    return all(word in _VAGUE for word in re.split(r"[_0-9]+", words))


def clean(name: str) -> str:
    """Return a name of a step: lower case letters, digits and ``_``."""
    text = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:50]
    text = re.sub(r"^[0-9_]+", "", text)
    return f"{text}_" if iskeyword(text) else text
