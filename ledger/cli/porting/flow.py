"""The statements of a job in the order in which they run, with the values that pass between them.

A value is what a name has from one assignment on, so two assignments of ``df`` are two values.
"""

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ledger.cli.porting.reading import (
    CHANGES,
    OUTSIDE,
    SESSIONS,
    DataAccess,
    JobFile,
    access,
    bound_names,
    calls_in,
    changed_names,
    is_guard,
)

# call: the result of a function of frames; outside: what this file does not tell, as arguments of
# the command line, and what cannot be followed
Kind = Literal["plain", "read", "call", "session", "outside"]
_DEPTH = 3  # calls that are followed: main, a function that it calls, and one that this calls
_LOCAL = (ast.Lambda, ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp)
_DRIVER = {"collect", "toPandas", "toLocalIterator", "rdd", "foreach", "foreachPartition"}
_NO_FRAMES = {"columns", "schema", "dtypes", "count", "first", "head", "take", "isEmpty", *_DRIVER}
_GROUPS = {"groupBy", "groupby", "rollup", "cube", "pivot"}  # whose count() is a frame
_WRITERS = {"write", "writeStream", "writeTo", "readStream"}
_VIEWS = {"createOrReplaceTempView", "createTempView", "registerTempTable"}
_TABLES = re.compile(r"\b(?:FROM|JOIN)\s+([\w.`]+)", re.IGNORECASE)


@dataclass(eq=False)
class Value:
    """A value that a name has from one assignment on.

    Attributes:
        text: the value, if it is a text that is known without running the job.
        names: further names that it was assigned to.
        function: the name of the function that returns it, if that is known.
        is_read_back: whether it is a read of what the job has written.
    """

    name: str
    statement: "Statement"
    kind: Kind = "plain"
    is_frame: bool = False
    text: str | None = None
    read: DataAccess | None = None
    names: list[str] = field(default_factory=list)
    function: str = ""
    is_read_back: bool = False


@dataclass(eq=False)
class Namespace:
    """The names of the module, or of one call of a function."""

    function: str = ""
    names: dict[str, Value] = field(default_factory=dict)
    outer: "Namespace | None" = None
    result: "Value | list[Value] | None" = None

    def get(self, name: str) -> Value | None:
        """Return the value of a name; None: it is not known. A name such as ``spark`` is a session,
        unless it has another value.
        """
        value = self.names.get(name) or (self.outer.get(name) if self.outer else None)
        if value is None and name in SESSIONS:
            return Value(name, Statement(self, ast.Pass()), "session")
        return value


@dataclass(eq=False)
class Statement:
    """A statement that a stage may need, or an expression whose value gets a name.

    Attributes:
        uses: values by the nodes that stand for them.
        before: values that names have before the statement changes them.
        views: values that it needs without naming them.
        values: the values that it assigns.
    """

    scope: Namespace
    node: ast.stmt | ast.expr
    uses: dict[ast.AST, Value] = field(default_factory=dict)
    before: dict[str, Value] = field(default_factory=dict)
    views: list[Value] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    @property
    def inputs(self) -> list[Value]:
        """All values that it needs."""
        return list(dict.fromkeys([*self.before.values(), *self.uses.values(), *self.views]))


@dataclass(eq=False)
class Write:
    """A write of the job.

    Attributes:
        path: None if it is not known before the job runs.
        template: the path with ``{{ params.NAME }}`` for parts that are not known.
        key: equal for two paths that are the same, known or not.
    """

    access: DataAccess
    value: Value
    path: str | None
    template: str | None
    key: str | None
    place: str
    scope: Namespace


class Flow:
    """Statements and writes of a job. ``todo``: lines on what could not be followed."""

    def __init__(self, job: JobFile):
        self.job = job
        self.statements: list[Statement] = []
        self.writes: list[Write] = []
        self.todo: dict[str, None] = {}
        self._views: dict[str, Value] = {}
        self._several: dict[ast.AST, list[Value]] = {}  # results of a followed call
        self._depth = 0
        self._module = scope = Namespace()
        for node in job.tree.body:  # what an import runs without a read or write, it provides
            if is_guard(node) or job.starts is not None:
                self._statement(node, scope)
        called = {job.function_of(call) for call in calls_in(job.tree)}
        entries = [each for each in job.functions.values() if job.reaches(each)]
        entries = [each for each in entries if each not in called]
        if not self.writes and len(entries) == 1:
            self._follow(entries[0], None, Statement(scope, ast.Pass()))
        for name, owner in job.classes.items():
            if job.reaches(owner):
                self.note(owner, f"class {name} reads or writes: move this into functions")
        if options := job.options():
            names = ", ".join(options)
            text = f"sets {names}: set those that the rows depend on in spark-defaults.conf"
            self.note(next(iter(options.values())), text)

    def note(self, node: ast.AST, text: str) -> None:
        """Add a line to what is left to do."""
        self.todo[f"{self.job.place(node)}: {text}"] = None

    def _statement(self, node: ast.stmt, scope: Namespace) -> None:
        match node:
            case ast.Try():
                for handler in node.handlers:
                    self.note(handler, "this error handler is left out")
                self._run([*node.body, *node.orelse, *node.finalbody], scope)
            case ast.With() if not any(item.optional_vars for item in node.items):
                self._run(node.body, scope)
            case ast.If() if is_guard(node):
                self._run(node.body, scope)
            case ast.Return(value=ast.expr() as value):
                parts = value.elts if isinstance(value, ast.Tuple) else [value]
                values = [self._value(part, scope) for part in parts]
                scope.result = values if isinstance(value, ast.Tuple) else values[0]
            case ast.Assign(targets=[target], value=value):
                self._assign(node, target, value, scope)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(node, target, value, scope)
            case ast.Expr(value=value):
                self._effect(node, value, scope)
            case ast.FunctionDef() | ast.ClassDef():
                if scope.function:
                    self._keep(node, scope, [node.name])
            case ast.Import() | ast.ImportFrom() | ast.Pass():
                pass
            case _:
                self._keep(node, scope, changed_names(node))

    def _run(self, body: Iterable[ast.stmt], scope: Namespace) -> None:
        for node in body:
            self._statement(node, scope)

    def _assign(self, node: ast.stmt, target: ast.expr, value: ast.expr, scope: Namespace) -> None:
        targets = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        names = [each.id for each in targets if isinstance(each, ast.Name)]
        if len(names) < len(targets):  # an item of a list or dict
            self._keep(node, scope, changed_names(node))
            return
        statement = Statement(scope, node)
        self._visit(value, statement)
        results = self._several.get(value, [])
        if value in statement.uses:
            results = [statement.uses[value]]
        # A variable of the same call may change later, so that its copy is a statement.
        variables = [each for each in results if each.name and each.kind != "session"]
        is_same = any(each.statement.scope is scope for each in variables)
        if len(results) == len(names) and not is_same:
            for name, result in zip(names, results, strict=True):
                result.names.append(name)
                scope.names[name] = result
            return
        scope.names |= {each.name: each for each in self._add(statement, names, value)}

    def _add(
        self, statement: Statement, names: Iterable[str], expression: ast.expr | None = None
    ) -> list[Value]:
        """Keep a statement; return the values that it assigns, each by this expression."""
        self.statements.append(statement)
        for name in names:
            value = Value(name, statement)
            statement.values.append(value)
            if expression is not None:
                value.is_frame = is_frame_of(expression, statement)
                value.text = self.text_of(expression, statement.scope)
            function = self.job.function_of(expression) if value.is_frame else None
            returns = function.returns if function is not None else None
            if returns is not None and "DataFrame" not in ast.unparse(returns):
                value.is_frame, function = False, None
            if function is not None:
                value.kind, value.function = "call", function.name
            elif OUTSIDE.search(ast.unparse(statement.node)):
                value.kind = "outside"
        return statement.values

    def _value(self, node: ast.expr, scope: Namespace, name: str = "") -> Value:
        """Return the value of an expression. If no existing value stands for it, it becomes a
        statement.
        """
        statement = Statement(scope, node)
        self._visit(node, statement)
        if node in statement.uses:
            return statement.uses[node]
        return self._add(statement, [name], node)[0]

    def _visit(self, node: ast.AST, statement: Statement) -> None:
        """Note the values that an expression uses; follow its reads, writes and calls."""
        scope = statement.scope
        if isinstance(node, _LOCAL):
            own = bound_names(node)
            for each in ast.walk(node):
                if isinstance(each, ast.Name) and each.id not in own:
                    self._visit(each, statement)
            return
        if isinstance(node, ast.Call):
            if write := access(node, "write"):
                self._write(write, scope)
                return
            if read := access(node, "read"):
                value = Value("", Statement(scope, node), "read", True, read=read)
                value.statement.values.append(value)
                self.statements.append(value.statement)
                statement.uses[node] = value
                key = self.key_of(read.location, scope)
                for other in self.writes:
                    if key and other.key == key:
                        self.note(node, f"reads what {other.place} writes: read its stage instead")
                        value.is_read_back = True
                return
            if self.job.makes_session(node):
                statement.uses[node] = Value("spark", Statement(scope, node), "session")
                return
            function = self.job.function_of(node)
            if function is not None and self.job.reaches(function):
                self._follow(function, node, statement)
                return
        if isinstance(node, ast.Name):
            if variable := scope.get(node.id):
                statement.uses[node] = variable
            passed = self.job.functions.get(node.id)
            if passed and self.job.reaches(passed):
                self.note(node, f"{node.id} reads or writes by itself: pass it a reference")
            return
        if isinstance(node, ast.Attribute) and node.attr in _DRIVER:
            self.note(node, f"{node.attr} takes rows out of Spark: rewrite it")
        elif isinstance(node, ast.Attribute) and node.attr in _WRITERS:
            self.note(node, f"{node.attr} cannot be followed here: write a batch in one statement")
        for child in ast.iter_child_nodes(node):
            self._visit(child, statement)
        match node:
            case ast.Call(func=ast.Attribute(attr="sql", value=base), args=[text, *_]):
                if base in statement.uses and statement.uses[base].kind == "session":
                    self._sql(node, self.text_of(text, scope), statement)

    def _effect(self, node: ast.Expr, value: ast.expr, scope: Namespace) -> None:
        """Follow an expression whose value is not used. Views, and changes of lists, are
        recorded.
        """
        statement = Statement(scope, node)
        self._visit(value, statement)
        match value:
            case ast.Call(func=ast.Attribute(attr=method), args=[first, *_]) if method in _VIEWS:
                name = self.text_of(first, scope)
                if name is None:
                    self.note(node, "the name of a view is computed: write it as a text")
                else:
                    self._views[name.lower()] = self._add(statement, [f"view {name}"])[0]
            case ast.Call(func=ast.Attribute(attr=method, value=ast.Name(id=name))):
                if method in CHANGES:
                    self._keep(node, scope, [name])
            case ast.Call(func=function) if ast.unparse(function).endswith(".conf.set"):
                self.note(node, "sets an option of Spark: set it in spark-defaults.conf")

    def _sql(self, node: ast.Call, text: str | None, statement: Statement) -> None:
        """Note the views that a text of SQL names, and what is left to do for other tables."""
        if text is None:
            self.note(node, "the text of a SQL statement is computed: write this part by hand")
            return
        for name in dict.fromkeys(each.replace("`", "") for each in _TABLES.findall(text)):
            if view := self._views.get(name.lower()):
                statement.views.append(view)
            else:
                self.note(
                    node, f"reads table {name} in SQL: declare a reference, and make it a view"
                )

    def _write(self, write: DataAccess, scope: Namespace) -> None:
        base = write.base
        while isinstance(base, ast.Call) and isinstance(base.func, ast.Attribute):
            if base.func.attr not in ("coalesce", "repartition"):  # the sink decides on files
                break
            base = base.func.value
        value = self._value(base, scope)
        if not value.is_frame:
            self.note(write.node, "writes a frame of which no read is found: declare a sink")
        else:
            path = self.text_of(write.location, scope)
            template = self.template_of(write.location, scope)
            key, place = self.key_of(write.location, scope), self.job.place(write.node)
            self.writes.append(Write(write, value, path, template, key, place, scope))

    def _follow(
        self, function: ast.FunctionDef, node: ast.Call | None, statement: Statement
    ) -> None:
        """Run through the statements of a function in place of its call. Parameters get the values
        of the arguments. A function that is called too deep is not followed, and noted as left to
        do.
        """
        if self._depth == _DEPTH:
            self.note(function, f"{function.name} reads or writes {_DEPTH} calls deep: simplify it")
            return
        inner = Namespace(function.name, outer=self._module)
        names = function.args
        every = [*names.posonlyargs, *names.args]
        passed = node or ast.Call(func=ast.Name(id=""), args=[], keywords=[])
        pairs = [*zip(every[::-1], names.defaults[::-1], strict=False)]
        pairs += [*zip(names.kwonlyargs, names.kw_defaults, strict=True)]  # type: ignore[list-item]
        arguments = {each.arg: (value, self._module) for each, value in pairs if value is not None}
        scope = statement.scope
        arguments |= {p.arg: (value, scope) for p, value in zip(every, passed.args, strict=False)}
        arguments |= {each.arg: (each.value, scope) for each in passed.keywords if each.arg}
        for name in [each.arg for each in (*every, *names.kwonlyargs)]:
            if name in arguments:
                inner.names[name] = self._value(*arguments[name], f"{function.name}_{name}")
            elif name not in SESSIONS:
                inner.names[name] = Value(name, Statement(inner, function), "outside")
        self._depth += 1
        self._run(function.body, inner)
        self._depth -= 1
        if isinstance(inner.result, Value) and node:
            statement.uses[node] = inner.result
            if inner.result.statement.scope is inner:
                inner.result.function = inner.result.function or function.name
        elif inner.result and node:
            self._several[node] = inner.result  # type: ignore[assignment]

    def _keep(self, node: ast.stmt, scope: Namespace, names: Sequence[str]) -> None:
        """Keep a compound statement, or one that changes a value, unchanged. If it decides on a
        read, a write or a return, it is not kept, but noted as left to do.

        ``names``: the names that it assigns or changes.
        """
        is_definition = isinstance(node, ast.FunctionDef | ast.ClassDef)
        acts: list[ast.AST] = [each for each in calls_in(node) if self.job.reaches(each)]
        if names and not is_definition:
            acts += [each for each in ast.walk(node) if isinstance(each, ast.Return)]
        if acts:
            kind = "loop" if isinstance(node, ast.For | ast.While) else "condition"
            place = self.job.place(acts[0])
            what = "returns" if isinstance(acts[0], ast.Return) else "reads or writes"
            self.note(node, f"this {kind} {what}, at {place}: write it by hand")
            scope.names |= {each: Value(each, Statement(scope, node), "outside") for each in names}
        if acts or not names:
            return
        statement = Statement(scope, node)
        counters = bound_names(node.target) if isinstance(node, ast.For) else set()
        before = {name: None if name in counters else scope.get(name) for name in names}
        statement.before = {name: value for name, value in before.items() if value}
        own = {*names, *bound_names(node)}
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and each.id not in own and (used := scope.get(each.id)):
                statement.uses[each] = used
        has_frame = any(each.is_frame for each in statement.inputs)
        for value in self._add(statement, names):
            earlier = before[value.name]
            value.is_frame = earlier.is_frame if earlier else has_frame
            scope.names[value.name] = value

    def text_of(self, node: ast.AST | None, scope: Namespace) -> str | None:
        """Return the text that an expression has, None if it is not known."""
        return self._text(node, scope, lambda *_: None)

    def definition(self, node: ast.expr | None, scope: Namespace) -> ast.expr | None:
        """Return the expression that a variable gets, or else the node."""
        value = scope.get(node.id) if isinstance(node, ast.Name) else None
        assigned = getattr(value.statement.node, "value", None) if value else None
        return assigned if isinstance(assigned, ast.expr) else node

    def key_of(self, node: ast.AST | None, scope: Namespace) -> str | None:
        """Return the text of an expression, with a mark for each value that is not known."""
        return self._text(node, scope, lambda value, item: f"\0{id(value)} {item}\0")

    def template_of(self, node: ast.AST | None, scope: Namespace) -> str | None:
        """Return the text of an expression, with ``{{ params.NAME }}`` for what is not known."""

        def parameter(value: Value, item: str) -> str | None:
            is_left_out = isinstance(value.statement.node, ast.For | ast.While | ast.If)
            name = item or value.name
            return f"{{{{ params.{name} }}}}" if name and not is_left_out else None

        return self._text(node, scope, parameter)

    def _text(
        self, node: ast.AST | None, scope: Namespace, unknown: Callable[[Value, str], str | None]
    ) -> str | None:
        """Return the text of an expression. ``unknown``: what stands for a value, or for an item of
        it, that is not known.
        """
        separator, parts = "", list[ast.expr]()
        match node:
            case ast.Constant(value=str() | int() as constant):
                return str(constant)
            case ast.FormattedValue(value=value, format_spec=None):
                return self._text(value, scope, unknown)
            case ast.Name(id=name):
                own = scope.get(name)
                if own is None:
                    return self._text(self.job.constants.get(name), scope, unknown)
                if own.text is None and len(own.statement.values) == 1 and not own.is_frame:
                    assigned = getattr(own.statement.node, "value", None)
                    text = self._text(assigned, own.statement.scope, unknown)
                    return text or unknown(own, "")
                return own.text or unknown(own, "")
            case (
                ast.Attribute(value=ast.Name(id=name), attr=item)
                | ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(item)))
            ):
                own = scope.get(name)
                return unknown(own, item) if own and own.kind == "outside" else None
            case ast.JoinedStr(values=[*parts]):
                pass
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                parts = [left, right]
            case ast.BinOp(left=left, op=ast.Div(), right=ast.Constant(value=str()) as right):
                separator, parts = "/", [left, right]
            case ast.Call(func=ast.Name(id="str" | "Path"), args=[part]):
                parts = [part]
            case ast.Call(func=function, args=[*parts]) if ast.unparse(function) == "os.path.join":
                separator = "/"
            case _:
                return None
        texts = [text for part in parts if (text := self._text(part, scope, unknown)) is not None]
        return separator.join(texts) if len(texts) == len(parts) else None


def is_frame_of(node: ast.expr, statement: Statement) -> bool:
    """Return whether an expression of a statement is a frame, or frames, as far as can be seen."""
    if node in statement.uses:
        return statement.uses[node].is_frame
    match node:
        case ast.Call(func=ast.Attribute(attr=method, value=base)):
            is_session = base in statement.uses and statement.uses[base].kind == "session"
            is_of_groups = isinstance(base, ast.Call) and getattr(base.func, "attr", "") in _GROUPS
            if is_session or (method in _NO_FRAMES and not (method == "count" and is_of_groups)):
                return method in ("sql", "createDataFrame", "range")
            return is_frame_of(base, statement) or _takes_frames(node, statement)
        case ast.Call(func=ast.Name(id=name)):
            return name not in ("print", "len", "str", "type") and _takes_frames(node, statement)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return any(is_frame_of(item, statement) for item in items)
    return False


def _takes_frames(node: ast.Call, statement: Statement) -> bool:
    arguments = [*node.args, *(each.value for each in node.keywords)]
    return any(is_frame_of(argument, statement) for argument in arguments)
