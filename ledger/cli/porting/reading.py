"""The file of a job: its definitions, the text of its parts, and its reads and writes."""

import ast
import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ledger.errors import InputError

AS_IS = "\0"  # begins a line within a text in triple quotes, which keeps its indentation
SESSIONS = {"spark", "session", "spark_session", "sparkSession", "sqlContext"}
# What gives values from the command line, or from a notebook.
OUTSIDE = re.compile(r"\bparse_args\(|\bsys\.argv\b|\bgetResolvedOptions\(|\bdbutils\.|\binput\(")
CHANGES = {"append", "extend", "update", "add", "insert"}  # methods that change a list or dict
_ENDS = {"csv", "json", "parquet", "text", "orc", "table", "load", "jdbc", "textFile"}
_ENDS |= {"save", "saveAsTable", "insertInto"}
# Names of the arguments after the first, by the verb and the last method.
_POSITIONS = {
    ("read", "csv"): ("schema", "sep", "encoding"),
    ("read", "json"): ("schema",),
    ("read", "load"): ("format", "schema"),
    ("read", "jdbc"): ("table",),
    ("write", "csv"): ("mode", "compression", "sep"),
    ("write", "json"): ("mode", "compression"),
    ("write", "parquet"): ("mode", "partitionBy", "compression"),
    ("write", "orc"): ("mode", "partitionBy", "compression"),
    ("write", "text"): ("compression",),
    ("write", "save"): ("format", "mode", "partitionBy"),
    ("write", "saveAsTable"): ("format", "mode", "partitionBy"),
    ("write", "insertInto"): ("overwrite",),
    ("write", "jdbc"): ("table", "mode", "properties"),
}
# Options of Spark on which no row depends.
_TUNING = (
    *("spark.app.", "spark.driver.", "spark.executor.", "spark.ui.", "spark.sql.adaptive."),
    *("spark.sql.shuffle.partitions", "spark.sql.autoBroadcastJoinThreshold"),
)


@dataclass(frozen=True)
class DataAccess:
    """A read or a write of the job.

    Attributes:
        node: the whole call.
        base: the session, or the frame that is written.
        format: the format, or ``table``.
        location: the argument that is the path or the table.
        options: options and further arguments by name.
    """

    node: ast.Call
    base: ast.expr
    format: str
    location: ast.expr | None
    options: Mapping[str, ast.expr]

    def constant(self, name: str) -> object:
        """Return an option's literal value, in any case of its name; None if there is none."""
        for key, node in self.options.items():
            if key.lower() == name.lower() and isinstance(node, ast.Constant):
                return node.value
        return None

    def is_set(self, name: str) -> bool:
        """Return whether an option is true, as a text or a bool."""
        return str(self.constant(name)).lower() == "true"


def access(node: ast.AST, verb: str) -> DataAccess | None:
    """Return the read or write that a call makes, by ``.read`` or ``.write`` as ``verb`` says; None
    if the call makes no such access.
    """
    calls: list[ast.Call] = []
    base = node
    while isinstance(base, ast.Call) and isinstance(base.func, ast.Attribute):
        calls.insert(0, base)
        base = base.func.value
        if isinstance(base, ast.Attribute) and base.attr == verb:
            ends = [_method(call) for call in calls if _method(call) in _ENDS]
            return _access(calls, base) if ends == [_method(calls[-1])] else None
    is_table = len(calls) == 1 and _method(calls[0]) == "table" and verb == "read"
    if is_table and isinstance(base, ast.Name) and base.id in SESSIONS:
        return DataAccess(calls[0], base, "table", calls[0].args[0], {})
    return None


def _access(calls: list[ast.Call], base: ast.Attribute) -> DataAccess:
    last, options = calls[-1], dict[str, ast.expr]()
    for call in calls:
        name = _method(call)
        if name == "option" and len(call.args) == 2 and isinstance(call.args[0], ast.Constant):
            options[str(call.args[0].value)] = call.args[1]
        elif name in ("partitionBy", "bucketBy", "sortBy", "clusterBy"):
            options[name] = ast.Tuple(elts=call.args)
        elif name in ("mode", "schema", "format") and call.args:
            options[name] = call.args[0]
        options |= {each.arg or "**": each.value for each in call.keywords}
    end, others = _method(last), last.args[1:]
    names = _POSITIONS.get((base.attr, end), ())
    options |= dict(zip(names, others, strict=False))
    if len(others) > len(names):
        options["further arguments"] = others[len(names)]
    form = options.get("format")
    named = str(form.value) if isinstance(form, ast.Constant) else "parquet"
    locations = [*last.args[:1], *(options.get(name) for name in ("path", "name", "tableName"))]
    location = next((each for each in locations if each is not None), options.get("dbtable"))
    if end == "jdbc":
        location = options.get("table")
    elif end in ("saveAsTable", "insertInto", "table"):
        end = "table"
    elif end in ("load", "save"):
        end = named
    return DataAccess(last, base.value, end, location, options)


def _method(call: ast.Call) -> str:
    """Return the last name of what a call calls."""
    return ast.unparse(call.func).rpartition(".")[2]


def calls_in(node: ast.AST) -> list[ast.Call]:
    """Return all calls in a tree."""
    return [each for each in ast.walk(node) if isinstance(each, ast.Call)]


def is_guard(node: ast.AST) -> bool:
    """Return whether a statement is ``if __name__ == "__main__"``."""
    return isinstance(node, ast.If) and ast.unparse(node.test).startswith("__name__ ==")


class JobFile:
    """The file of a job.

    Attributes:
        functions: the functions by name.
        constants: the expressions that the names at module level get.
        imports: each imported name with the line that imports only this name.
        stars: the lines that import all names of a module.
        parents: the parent of each node.
        starts: the first line that reads, writes or starts Spark when the file is imported.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            self._source = path.read_bytes()
            self.tree = ast.parse(self._source.decode())
        except (OSError, SyntaxError, ValueError) as error:
            raise InputError(f"{path}: expected a Python file, found: {error}") from error
        self._lines = self._source.splitlines(keepends=True)
        body = self.tree.body
        self.functions = {each.name: each for each in body if isinstance(each, ast.FunctionDef)}
        self.classes = {each.name: each for each in body if isinstance(each, ast.ClassDef)}
        self.constants = {
            target.id: node.value
            for node in body
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        self.imports: dict[str, str] = {}
        self.stars: list[str] = []
        self.parents: dict[ast.AST, ast.AST] = {}
        for node in ast.walk(self.tree):
            self.parents |= dict.fromkeys(ast.iter_child_nodes(node), node)
            for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                single = copy.copy(node)
                single.names = [alias]  # type: ignore[attr-defined]
                if alias.name == "*":
                    self.stars.append(ast.unparse(single))
                else:
                    name = alias.asname or alias.name.split(".")[0]
                    self.imports[name] = ast.unparse(single)
        self._reaching: dict[ast.AST, bool] = {}
        definitions = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
        acts = (
            node.lineno
            for node in body
            if not isinstance(node, definitions) and not is_guard(node)
            if self.reaches(node)
            or any(self.makes_session(each) for each in calls_in(node))
            or OUTSIDE.search(ast.unparse(node))
        )
        self.starts = next(acts, None)

    def function_of(self, call: ast.AST | None) -> ast.FunctionDef | None:
        """Return the function of this file that a call calls; None: it calls none of them."""
        name = getattr(call.func, "id", "") if isinstance(call, ast.Call) else ""
        return self.functions.get(name)

    def reaches(self, node: ast.AST) -> bool:
        """Return whether a tree reads or writes, or calls a function that does."""
        if node not in self._reaching:
            self._reaching[node] = False  # for functions that call themselves
            self._reaching[node] = any(
                access(call, "read")
                or access(call, "write")
                or ((function := self.function_of(call)) and self.reaches(function))
                for call in calls_in(node)
            )
        return self._reaching[node]

    def makes_session(self, call: ast.Call) -> bool:
        """Return whether a call makes or gets a Spark session."""
        function = self.function_of(call)
        if function is not None and not self.reaches(function):
            return any(_method(each) == "getOrCreate" for each in calls_in(function))
        return _method(call) in ("getOrCreate", "getActiveSession")

    def options(self) -> dict[str, ast.Call]:
        """Return the calls that give an option to a new session, by the option's name."""
        options = dict[str, ast.Call]()
        for call in calls_in(self.tree):
            is_setter = _method(call) in ("config", "set") and len(call.args) == 2
            if is_setter and not ast.unparse(call.func).endswith(".conf.set"):
                name = getattr(call.args[0], "value", None)
                if isinstance(name, str) and name.startswith("spark."):
                    options |= {} if name.startswith(_TUNING) else {name: call}
        return dict(sorted(options.items(), key=lambda each: each[1].func.end_lineno or 0))

    def place(self, node: ast.AST) -> str:
        """Return file and line of a node: of a chain of calls, the line of the last method."""
        line = getattr(node, "lineno", 1)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            line = node.func.end_lineno
        return f"{self.path.name}:{line}"

    def _span(self, node: ast.AST) -> tuple[int, int]:
        """Return the bytes of the file between which a node is written."""
        ends = [("lineno", "col_offset"), ("end_lineno", "end_col_offset")]
        first, last = (
            sum(map(len, self._lines[: getattr(node, line) - 1])) + getattr(node, column)
            for line, column in ends
        )
        return first, last

    def text(self, node: ast.stmt | ast.expr, replaced: Mapping[ast.AST, str]) -> str:
        """Return the text of a node without its indentation, with other texts for nodes in it."""
        edits: dict[tuple[int, int], str] = {}
        formatted: set[ast.AST] = set()  # Python 3.11 has no places within an f-string
        for each in ast.walk(node):
            names = {ast.unparse(n): replaced[n] for n in ast.walk(each) if n in replaced}
            if isinstance(each, ast.JoinedStr) and names:
                own = copy.deepcopy(each)
                for name in ast.walk(own):
                    if isinstance(name, ast.Name):
                        name.id = names.get(name.id, name.id)
                edits[self._span(each)] = ast.unparse(own).replace("\n", f"\n{AS_IS}")
                formatted |= {*ast.walk(each)}
        edits |= {self._span(n): text for n, text in replaced.items() if n not in formatted}
        covered = [range(*span) for span in edits]
        start, end = self._span(node)
        for each in ast.walk(node):
            is_text = isinstance(each, ast.JoinedStr) or (
                isinstance(each, ast.Constant) and isinstance(each.value, str | bytes)
            )
            own_span = self._span(each) if is_text else (0, 0)
            if self._source[slice(*own_span)].endswith((b'"""', b"'''")):
                for line in range(each.lineno, each.end_lineno):  # type: ignore[attr-defined]
                    at = sum(map(len, self._lines[:line]))
                    if not any(at in span for span in covered):
                        edits[at, at] = AS_IS
        result = self._source[start:end]
        for (first, last), text in sorted(edits.items(), reverse=True):
            result = result[: first - start] + text.encode() + result[last - start :]
        first_line = self._lines[node.lineno - 1]
        blank = first_line[: len(first_line) - len(first_line.lstrip())].decode()
        return "\n".join(each.removeprefix(blank) for each in result.decode().splitlines())


def bound_names(node: ast.AST) -> set[str]:
    """Return the names that are assigned or are parameters within a node."""
    names = {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
    stored = (each for each in ast.walk(node) if isinstance(getattr(each, "ctx", None), ast.Store))
    return names | {each.id for each in stored if isinstance(each, ast.Name)}


def changed_names(node: ast.AST) -> list[str]:
    """Return the names that a statement assigns, or whose values it changes."""
    names: dict[str, None] = {}
    for each in ast.walk(node):
        match each:
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.Subscript(value=ast.Name(id=name), ctx=ast.Store())
            ):
                names[name] = None
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)):
                names |= {name: None} if method in CHANGES else {}
    return [*names]
