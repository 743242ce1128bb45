"""Names of written tables in the text of SQL: those that a statement reads are replaced."""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import ParseException, PySparkException
from pyspark.sql import SparkSession

from ledger.auditing.scripts.stops import ScriptStop
from ledger.auditing.scripts.tables import Tables, name_parts, table_parts
from ledger.auditing.scripts.written import alternatives, full_path
from ledger.lineage.catalyst import Catalyst, Expression, Node
from ledger.lineage.nodes import simple_name
from ledger.types.spark import quoted

_RELATION = "UnresolvedRelation"
_NAMED = (_RELATION, "UnresolvedTable", "UnresolvedTableOrView")
# Nodes with a plan that is none of their children.
_INNER = {
    "DescribeQueryCommand": "plan",
    "ExplainCommand": "logicalPlan",
    "RelationTimeTravel": "relation",
}
# After this a name can have no alias: TABLE t, CACHE TABLE t, f(TABLE(t)).
_TABLE = re.compile(r"\bTABLE\s*\(?\s*\Z", re.IGNORECASE)
_IDENTIFIER = re.compile(r"IDENTIFIER\s*\(.*\)", re.IGNORECASE | re.DOTALL)
_QUALIFIER = r"(`(?:[^`]|``)+`|[^\s.`]+)\s*\.\s*"
_QUERY = re.compile(r"\b(FROM|TABLE)\b", re.IGNORECASE)
_SELECT = "SELECT "

Edit = tuple[int, int, str]


def parsed(spark: SparkSession, text: str) -> Node:
    """Return the plan of a statement, or raise Spark's own error."""
    session: Any = spark._jsparkSession
    return session.sessionState().sqlParser().parsePlan(text)


def with_copies(tables: Tables, spark: SparkSession, text: str, plan: Node) -> str:
    """Return a statement that reads the copies of tables that the script has written. Ends the
    script if it names such a table, or the path of an output, in a way that cannot be replaced.

    ``plan``: the parsed statement. Its nodes say where in the text a table is named, so columns,
    comments and common table expressions stay as they are.
    """
    catalyst = Catalyst(spark)
    for node, _ in _nodes(catalyst, plan):
        if simple_name(node) == _RELATION:
            parts = [str(part) for part in catalyst.items(node.multipartIdentifier())]
            require_table(tables, spark, parts)
        if simple_name(node) == "PlanWithUnresolvedIdentifier" and (tables or tables.phantoms):
            raise ScriptStop(
                "reads a table by IDENTIFIER(), whose name the audit cannot read: expected its name"
            )
    if not tables:
        return text
    edits = _edits(tables, spark, text, plan)
    if not edits:
        return text
    changed = text
    for start, stop, words in sorted(edits, reverse=True):
        changed = changed[:start] + words + changed[stop:]
    try:
        is_done = not _edits(tables, spark, changed, parsed(spark, changed))
    except ParseException:
        is_done = False
    if not is_done:
        raise ScriptStop(
            f"reads a table that the script has written in a way that the audit does not know: "
            f"{' '.join(text.split())}. Expected its name in FROM, with an alias at most"
        )
    return changed


def expression_with_copies(tables: Tables, spark: SparkSession | None, text: str) -> str:
    """Return an expression whose subqueries read the copies; see ``with_copies``.

    ``spark``: None is the active session.
    """
    if not _QUERY.search(text):
        return text
    spark, statement = spark or SparkSession.active(), _SELECT + text
    changed = with_copies(tables, spark, statement, parsed(spark, statement))
    return changed.removeprefix(_SELECT)


def require_unwritten(tables: Tables, spark: SparkSession, path: str) -> None:
    """End the script if SQL names a path whose files are not as the script left them. Otherwise,
    note that Spark has read the path.
    """
    if not path:
        return
    for each in map(full_path, alternatives(spark, path)):
        if own := tables.written.at(spark, each):
            raise ScriptStop(
                f"reads {path} in SQL, where it has written {own[0].name}: the audit has written a "
                "copy instead. Read the path with spark.read, or the table by its name"
            )
        tables.phantoms.require_readable(each)
        tables.phantoms.read.add(each)


def require_table(tables: Tables, spark: SparkSession, name: str | Sequence[str]) -> None:
    """End the script if a name is a path, as parquet.`path`, that ``require_unwritten`` refuses."""
    parts = name_parts(spark, name)
    if len(parts) == 2 and _is_data_source(spark, parts[0]):
        require_unwritten(tables, spark, parts[1])


def _is_data_source(spark: SparkSession, name: str) -> bool:
    """Return whether a name is that of a format, such as parquet, or of its class."""
    java: Any = spark._jvm
    session: Any = spark._jsparkSession
    sources = java.org.apache.spark.sql.execution.datasources.DataSource
    try:
        sources.lookupDataSource(name, session.sessionState().conf())
    except (Py4JError, PySparkException):  # it is the name of a database
        return False
    return True


def _edits(tables: Tables, spark: SparkSession, text: str, plan: Node) -> list[Edit]:
    """Return the parts of a text that name a written table, and what replaces each. Ends the script
    if a name cannot be replaced.
    """
    catalyst = Catalyst(spark)
    edits: list[Edit] = []
    read: set[tuple[str, ...]] = set()
    nodes = list(_nodes(catalyst, plan))
    for node, ctes in nodes:
        name = simple_name(node)
        if name not in _NAMED:
            continue
        parts = [str(part) for part in catalyst.items(node.multipartIdentifier())]
        is_cte = name == _RELATION and len(parts) == 1 and parts[0].lower() in ctes
        view = None if is_cte else tables.view_of(spark, parts)
        if view is None:
            continue
        if name == _RELATION:
            tables.require_known(spark, parts)
        if name == "UnresolvedTable":
            raise ScriptStop(
                f"{node.commandName()} of {'.'.join(parts)}, which the script has written, is not "
                "audited: expected SELECT or DESCRIBE"
            )
        start, stop = _span(node)
        if not _is_name(spark, text[start:stop], parts):
            raise ScriptStop(
                f"names {'.'.join(parts)}, which the script has written, in a way that the audit "
                "cannot read: expected the name itself, without variables"
            )
        is_bare = name != _RELATION or _TABLE.search(text[:start])
        edits.append((start, stop, view if is_bare else f"({view} AS {quoted(parts[-1])})"))
        read.add(tuple(table_parts(spark, parts)))
    return edits + list(_qualifiers(catalyst, text, [node for node, _ in nodes], read))


def _nodes(
    catalyst: Catalyst, node: Node, ctes: frozenset[str] = frozenset()
) -> Iterator[tuple[Node, frozenset[str]]]:
    """Yield the nodes of a parsed statement, each with the common table expressions that it
    sees.
    """
    yield node, ctes
    name = simple_name(node)
    if name == "UnresolvedWith":
        is_recursive = "allowRecursion" in catalyst.fields(node) and node.allowRecursion()
        for definition in catalyst.items(node.cteRelations()):
            own = ctes | {str(definition._1()).lower()}
            yield from _nodes(catalyst, definition._2(), own if is_recursive else ctes)
            ctes = own
    inner = [getattr(node, _INNER[name])()] if name in _INNER else []
    for child in [*inner, *catalyst.children(node), *catalyst.subqueries(node)]:
        yield from _nodes(catalyst, child, ctes)


def _qualifiers(
    catalyst: Catalyst, text: str, nodes: Sequence[Node], read: Collection[tuple[str, ...]]
) -> Iterator[Edit]:
    """Yield edits that remove the database before the name of a table before a column, because the
    table becomes an alias. Ends the script if the name of the table is not unique.
    """
    lasts = [table[-1] for table in read]
    if not any(re.search(rf"\.\s*`?{re.escape(last)}`?\s*\.", text, re.I) for last in lasts):
        return
    prefixes = {table[at:] for table in read for at in range(len(table) - 1)}
    for expression in _expressions(catalyst, nodes):
        name, start = [part.lower() for part in _names(catalyst, expression)], _span(expression)[0]
        for prefix in prefixes:
            if tuple(name[: len(prefix)]) != prefix:
                continue
            qualifier = re.compile(_QUALIFIER * (len(prefix) - 1)).match(text, start)
            if qualifier is None or len(set(lasts)) < len(lasts):
                raise ScriptStop(
                    f"names a column {'.'.join(name)} of a table that the script has written: "
                    "expected an alias of the table, and the column with the alias"
                )
            yield start, qualifier.end(), ""


def _expressions(catalyst: Catalyst, nodes: Sequence[Node]) -> Iterator[Expression]:
    todo = [each for node in nodes for each in catalyst.items(node.expressions())]
    while todo:
        expression = todo.pop()
        yield expression
        todo += catalyst.items(expression.children())


def _names(catalyst: Catalyst, expression: Expression) -> list[str]:
    """Return the parts of the name before a column or a star."""
    name = simple_name(expression)
    if name == "UnresolvedAttribute":
        return [str(part) for part in catalyst.items(expression.nameParts())][:-1]
    if name == "UnresolvedStar" and expression.target().isDefined():
        return [str(part) for part in catalyst.items(expression.target().get())]
    return []


def _span(node: Node | Expression) -> tuple[int, int]:
    """Return the begin and the end of a node in the text that was parsed; 0 and 0 if unknown."""
    origin = node.origin()
    if origin.startIndex().isEmpty():
        return 0, 0
    return int(origin.startIndex().get()), int(origin.stopIndex().get()) + 1


def _is_name(spark: SparkSession, text: str, parts: Sequence[str]) -> bool:
    try:
        return bool(_IDENTIFIER.fullmatch(text)) or name_parts(spark, text) == [*parts]
    except ParseException:
        return False
