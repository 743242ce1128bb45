"""The module of a pipeline, written from the steps of a job."""

import ast
import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ledger.auditing.expected import ExpectedLoss
from ledger.cli.porting.declarations import Declaration, call, quoted, sink, sink_path, source
from ledger.cli.porting.flow import Flow, Namespace, Statement, Value, Write
from ledger.cli.porting.reading import AS_IS, JobFile, bound_names
from ledger.cli.porting.steps import Stage, Steps, clean, steps_of
from ledger.core.branches import loss_in_a_branch
from ledger.errors import InputError

_EXPECTED = "EXPECTED"  # the constant with the losses that an audit expects


@dataclass(frozen=True)
class Port:
    """A job as a pipeline: the name and text of its module, and lines of what is left to do."""

    name: str
    text: str
    todo: list[str]


def port(path: Path, expected: Sequence[ExpectedLoss] = ()) -> Port:
    """Return the pipeline of a job. Raises InputError if it has no write that can be followed."""
    flow = Flow(JobFile(path))
    name = clean(path.stem)
    taken = {*flow.job.imports, *dir(builtins), "pipeline", "params", name}
    steps = steps_of(flow, taken) if flow.writes else None
    if steps is None or not flow.writes:
        hints = "".join(f"\n  {line}" for line in flow.todo)
        raise InputError(
            f"{path}: found no write that can be followed to a read, so no pipeline is written."
            f" Expected spark.read..., frames that come from it, and df.write...{hints}"
        )
    writer = _Writer(flow, steps.names, has_expected=bool(expected))
    blocks = [writer.source("source", each) for each in steps.sources]
    blocks += [writer.source("reference", each) for each in steps.references]
    declared = "\n".join([f"pipeline = Pipeline({quoted(name)})", *blocks])
    stages = [writer.stage(stage) for stage in steps.stages]
    if not expected:
        writer.note_branches(steps)
    sinks = "\n".join(writer.sink(write) for write in flow.writes)
    todo = [*dict.fromkeys([*writer.todo, *flow.todo])]
    if writer.imports_job:
        if flow.job.starts is not None:
            todo.insert(
                0,
                f"{path.name}:{flow.job.starts}: importing this file starts the job: put this line"
                ' and those that run it under if __name__ == "__main__":',
            )
        if name != path.stem:
            todo.insert(0, f"{path.name}: rename it to {name}.py, so that it can be imported")
        writer.imports.add(f"import {name}")
    if expected:
        writer.constants[_EXPECTED] = _expected(expected)
        todo.append(
            f"{_EXPECTED} accepts what an audit expects, however many records it is: limit all"
            " failures of a batch with hold_above="
        )
    if stages:
        writer.imports.add("from pyspark.sql import DataFrame")
    writer.imports.add(f"from ledger import {', '.join(sorted({'Pipeline', *writer.classes}))}")
    head = f'"""The pipeline of {path.name}."""\n\n'
    head += "# Left to do:\n" + "".join(f"# - {line}\n" for line in todo) + "\n" if todo else ""
    imports = sorted(writer.imports, key=lambda line: (line.startswith("from"), line))
    constants = [f"{key} = {text}" for key, text in writer.constants.items()]
    first = "\n".join([*imports, "", *constants, *([""] if constants else []), declared])
    text = "\n\n\n".join([head + first, *stages, sinks]) + "\n"
    return Port(f"{name}_pipeline", text, todo)


class _Writer:
    """Writes the parts of a module, and collects what they import and what is left to do.

    Attributes:
        imports: lines.
        classes: names that are imported from ``ledger``.
        constants: texts of schemas by the name that they get.
        imports_job: whether a part uses a function or a constant of the job.
    """

    def __init__(self, flow: Flow, names: dict[Value | Write, str], *, has_expected: bool):
        self._flow, self._job, self._names = flow, flow.job, names
        self._options = f", expected={_EXPECTED}" if has_expected else ""
        self.imports: set[str] = set()
        self.classes: set[str] = set()
        self.constants: dict[str, str] = {}
        self.imports_job = False
        self.todo: list[str] = []
        self._paths: set[str] = set()  # of sinks
        self._inputs: dict[Value, str] = {}  # of one stage
        self._locals: dict[object, str] = {}  # of one stage

    def source(self, kind: str, value: Value) -> str:
        """Return the declaration of a source or reference."""
        assert value.read is not None
        scope, read, name = value.statement.scope, value.read, self._names[value]
        path = self._flow.text_of(read.location, scope)
        schema = read.options.get("schema")
        columns = self._schema(schema, scope) if schema is not None else ""
        template = self._flow.template_of(read.location, scope)
        if value.is_read_back:
            template = None
        location = self._flow.definition(read.location, scope)
        declared = source(name, replace(read, location=location), path, template, columns)
        if value.is_read_back:
            declared.todo = []  # the stage of its write is to be read instead
        elif kind == "reference":
            declared.todo.append(
                "is only the right side of joins, so it is a reference: declare it as a source if"
                " its records must not be lost"
            )
        elif path is not None:
            declared.todo.append(
                "reads the same path in each batch: write {{ interval_start | ds }} for the day, or"
                " declare a reference if it is a lookup"
            )
        frame = (value.names or ["df"])[0]
        todo = [line.replace("FRAME", frame) for line in declared.todo]
        return self._declared(kind, name, declared, todo, self._job.place(read.node))

    def sink(self, write: Write) -> str:
        """Return the declaration of a sink."""
        location = self._flow.definition(write.access.location, write.scope)
        name, path = self._names[write], write.path
        if path is None:
            path = sink_path(name, write.template, self._paths)
        self._paths.add(path)
        access = replace(write.access, location=location)
        declared = sink(access, path, is_known=write.path is not None)
        reads = f"reads={quoted(self._names[write.value])}"
        return self._declared("sink", name, declared, declared.todo, write.place, reads)

    def note_branches(self, steps: Steps) -> None:
        """Note for each source which stages withhold a record that they lose from other sinks."""
        names = self._names
        stages = {names[each.value]: [names[read] for read in each.reads] for each in steps.stages}
        sinks = {names[write]: [names[write.value]] for write in self._flow.writes}
        for value in steps.sources:
            note = loss_in_a_branch(names[value], stages | sinks, stages, sinks)
            if note and value.read is not None and not value.is_read_back:
                place = self._job.place(value.read.node)
                self.todo.append(f"{place}: {names[value]} feeds several sinks: {note}")

    def _declared(
        self, kind: str, name: str, declared: Declaration, todo: list[str], place: str, *more: str
    ) -> str:
        self.classes.add(declared.name)
        self.todo += [f"{place}: {name} {line}" for line in todo]
        inner = call(declared.name, declared.arguments, 4, ",")[:-1]
        return call(f"pipeline.{kind}", [quoted(name), inner, *more])

    def _schema(self, node: ast.expr, scope: Namespace) -> str:
        """Return the text of a schema; that of a variable becomes a constant of the module."""
        value = scope.get(node.id) if isinstance(node, ast.Name) else None
        if value is None or value.kind != "plain":
            text = self._text(Statement(scope, node), node)
            return " ".join(text.replace(AS_IS, "").split())
        statement = value.statement
        own = getattr(statement.node, "value", statement.node)
        key = clean(value.name).upper()
        self.constants[key] = self._text(Statement(statement.scope, own), own).replace(AS_IS, "")
        return key

    def stage(self, stage: Stage) -> str:
        """Return the text of a stage: the decorator, and the function with its statements. Values
        that are not known are noted as left to do.
        """
        names = self._names
        self._inputs = {each: names[each] for each in (*stage.reads, *stage.references)}
        self._locals = {}
        reads = [names[each] for each in stage.reads]
        lines = [line for each in stage.statements for line in self._lines(each, stage)]
        values = dict.fromkeys(each for used in stage.statements for each in used.inputs)
        sessions = dict.fromkeys(each.name for each in values if each.kind == "session")
        lines = [*(f"{each} = {reads[0]}.sparkSession" for each in sessions), *lines]
        for each in values:
            if each.kind == "outside":
                node, step = each.statement.node, names[stage.value]
                is_left_out = isinstance(node, ast.For | ast.While | ast.If)
                todo = f"is left out: make it in the stage {step}"
                if not is_left_out:
                    todo = f"is not known: set it in the stage {step}, for example from params"
                self.todo.append(f"{self._job.place(node)}: {each.name} {todo}")
        references = [names[each] for each in stage.references]
        arguments = [f"{each}: DataFrame" for each in (*reads, *references)]
        if references:
            arguments.insert(len(reads), "*")
        reading = quoted(reads[0]) if len(reads) == 1 else f"[{', '.join(map(quoted, reads))}]"
        body = "\n".join(_indented(line) for line in lines).strip("\n").replace(AS_IS, "")
        head = call(f"def {names[stage.value]}", arguments, end=" -> DataFrame:")
        return f"@pipeline.stage(reads={reading}{self._options})\n{head}\n{body}"

    def _lines(self, statement: Statement, stage: Stage) -> Iterator[str]:
        """Yield the lines of a statement, with ``return`` at the end of the stage."""
        node, values = statement.node, statement.values
        is_last = stage.value in values
        for name, value in statement.before.items():
            changed = next(each for each in values if each.name == name)
            before, after = self._local(value), self._local(changed)
            if before != after:
                yield f"{after} = {before}"
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_last and len(values) == 1:
            node = node if statement.before else node.value or node
        text = self._text(statement, node)
        if isinstance(node, ast.expr):
            yield f"{'return' if is_last else f'{self._local(values[0])} ='} {_in_brackets(text)}"
            return
        yield f"\n{text}\n" if isinstance(node, ast.FunctionDef | ast.ClassDef) else text
        if is_last:
            yield f"return {self._local(stage.value)}"

    def _local(self, value: Value) -> str:
        """Return the name that a value has in the stage."""
        if value in self._inputs or value.kind == "session":
            return self._inputs.get(value, value.name)
        scope = value.statement.scope
        key = (id(scope), value.name) if value.name else value
        if key not in self._locals:
            used = {*self._locals.values()} | {
                step
                for each, step in self._inputs.items()
                if each.statement.scope is not scope
                or {each.name, *each.names} > {"", value.name}
                or value.name not in (each.name, *each.names)
            }
            name = value.name or "rows"
            others = [f"{scope.function or 'job'}_{name}", *(f"{name}_{n}" for n in range(2, 999))]
            self._locals[key] = next(each for each in [name, *others] if each not in used)
        return self._locals[key]

    def _text(self, statement: Statement, node: ast.stmt | ast.expr) -> str:
        """Return a statement's text with the names of the stage, and note the imports it needs."""
        replaced: dict[ast.AST, str] = {}
        bound, values = bound_names(node), {each.name: each for each in statement.values}
        pending: list[ast.AST] = [node]
        while pending:
            each = pending.pop()
            text = ""
            if each in statement.uses:
                text = self._local(statement.uses[each])
            elif isinstance(each, ast.Name):
                if each.id in values and not isinstance(node, ast.expr):
                    text = self._local(values[each.id])
                elif each.id not in bound:
                    text = self._expression_of(each.id)
            if text and text != ast.unparse(each):
                replaced[each] = text
            if each not in statement.uses:
                pending += ast.iter_child_nodes(each)
        return self._job.text(node, replaced)

    def _expression_of(self, name: str) -> str:
        """Return the expression with which the ported pipeline reads a name of the job's module, as
        ``module.name``. Return an empty text if the name can stay as it is. Note the import that it
        needs.
        """
        job = self._job
        if name in job.functions or name in job.classes or name in job.constants:
            self.imports_job = True
            return f"{clean(job.path.stem)}.{name}"
        if name in job.imports:
            self.imports.add(job.imports[name])
        elif job.stars and not hasattr(builtins, name):
            self.imports |= {*job.stars}
        return ""


def _expected(losses: Sequence[ExpectedLoss]) -> str:
    """Return the losses that an audit expects as a stage declares them, each with why."""
    reasons = {f"{loss.operation}: {loss.reason}": loss.why or "expected" for loss in losses}
    lines = [f"    {quoted(loss)}: {quoted(why)},\n" for loss, why in reasons.items()]
    return f"{{\n{''.join(lines)}}}"


def _in_brackets(text: str) -> str:
    """Return an expression in brackets if its lines need them."""
    try:
        ast.parse(f"value = {text.replace(AS_IS, '')}")
    except SyntaxError:
        return f"(\n{_indented(text)}\n)"
    return text


def _indented(text: str) -> str:
    return "\n".join(
        line if line.startswith(AS_IS) or not line.strip() else f"    {line}"
        for line in text.split("\n")
    )
