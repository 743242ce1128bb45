"""Have functions that read the names of files read columns of the sources' copies instead.

A copy has other files than its source, so it keeps the metadata that Spark has of each row's file.
``input_file_name()`` and the like are functions of it where a row comes straight from its file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ledger.auditing.attribution import Attribution
from ledger.auditing.file_names import FILE_FUNCTIONS, file_functions, file_metadata
from ledger.auditing.operations import is_consulting, operation, simple_class
from ledger.auditing.routes import sources_in
from ledger.auditing.scripts.changes import is_cached
from ledger.auditing.sources import AuditSource, Leaf
from ledger.errors import CarryError
from ledger.lineage.catalyst import Catalyst, Expression, Node
from ledger.lineage.nodes import WORDS, simple_name

# Between a scan and a function these pass one row after the other. Each with the field that may
# have the function.
_STREAMING = {
    "Filter": "condition",
    "Generate": "generator",
    "Project": "projectList",
    "ResolvedHint": "",
    "SubqueryAlias": "",
    "Union": "",
    "View": "",
}
_GENERATORS = frozenset({"Explode", "Inline", "JsonTuple", "PosExplode", "Stack"})
_PATTERNS = "org.apache.spark.sql.catalyst.trees.TreePattern"
_COPIED = (
    "which an earlier output reads without it, and a second copy is not proven to have the same "
    "records in the same order"
)
Columns = dict[str, Expression]  # by the class of the function that each stands for
Wanted = Mapping[str, str]  # classes of functions, each with its line


def with_metadata(catalyst: Catalyst, leaf: Node) -> tuple[DataFrame, int]:
    """Return the rows of a leaf, and the number of columns behind its own.

    If it reads files, these are two: the metadata of the row's file, and whether Spark's functions
    of files have the values that ``file_values`` takes from it.
    """
    leaf = without_metadata(catalyst, leaf)
    if simple_name(leaf) == "LogicalRelation":
        leaf = leaf.withMetadataColumns()
    hidden = file_metadata(catalyst, leaf)
    if not hidden:
        return catalyst.frame(leaf), 0
    values = file_values(catalyst.column(hidden[0]))
    functions = {kind: F.expr(function) for kind, function in FILE_FUNCTIONS.items()}
    is_equal = [functions[kind].eqNullSafe(value) for kind, value in values.items()]
    # Without Spark's mark of hidden attributes, which a copy's schema would have as well.
    metadata = F.coalesce(catalyst.column(hidden[0]))
    visible = catalyst.output(leaf)[: -len(hidden)]
    plan, _ = catalyst.projected(leaf, visible, [metadata, reduce(Column.__and__, is_equal)])
    return catalyst.frame(plan), 2


def reads_file_names(catalyst: Catalyst, plan: Node) -> bool:
    """Return whether a plan has functions of files, or attributes that Spark hides."""
    return any(
        file_functions(catalyst, node)
        or (not catalyst.children(node) and file_metadata(catalyst, node))
        for node in catalyst.nodes(plan)
    )


def without_metadata(catalyst: Catalyst, leaf: Node) -> Node:
    """Return a leaf without the attributes that Spark hides unless they are asked for."""
    hidden = {int(each.exprId().id()) for each in file_metadata(catalyst, leaf)}
    if not hidden:
        return leaf
    output = [each for each in catalyst.output(leaf) if int(each.exprId().id()) not in hidden]
    return catalyst.rebuilt(leaf, output=output)


def with_file_columns(attribution: Attribution) -> Attribution:
    """Return an attribution whose plan has columns in place of functions of its sources' files.

    Raises CarryError where the value of such a function depends on how Spark computes the plan.
    """
    rewriting = _Rewriting(attribution)
    plan, _ = rewriting.rewritten(attribution.plan, {})
    return replace(attribution, plan=plan, place=rewriting.place)


@dataclass
class _Rewriting:
    attribution: Attribution
    _originals: dict[int, Node] = field(default_factory=dict)

    @property
    def _catalyst(self) -> Catalyst:
        return self.attribution.catalyst

    def place(self, node: Node) -> str:
        """Return the line of a node, which may be one that was made here."""
        return self.attribution.place(self._originals.get(self._catalyst.identity(node), node))

    def rewritten(self, node: Node, wanted: Wanted) -> tuple[Node, Columns]:
        """Return a node with columns for the wanted functions behind its own. Raises CarryError
        where Spark may know no file, or where a row's file is not certain.
        """
        catalyst = self._catalyst
        if wanted and is_cached(catalyst, node):
            raise _refusal(wanted, "is taken of a cached frame, where Spark may know no file")
        leaf = self.attribution.sources.leaf_of(node)
        if leaf is not None:
            return self._leaf(node, leaf, wanted)
        for subquery in catalyst.subqueries(node):
            self._require_no_copies(subquery, {})
        if not sources_in(self.attribution, node):
            if wanted:
                raise _refusal(wanted, "is taken of rows that are in no file")
            return node, {}
        own = dict.fromkeys(file_functions(catalyst, node), self.place(node))
        below = {**own, **wanted}
        self._require_streaming(node, below)
        children = catalyst.children(node)
        followed = children[:1] if is_consulting(node) else children
        for other in children[len(followed) :]:
            self._require_no_copies(other, {})
        done = [self.rewritten(child, below) for child in followed]
        if all(new is old for (new, _), old in zip(done, followed, strict=True)):
            return node, {}
        plan, columns = self._with_children(node, done, own, sorted(wanted))
        plan = self._note(node, plan)
        if set(own) - set(wanted) and simple_name(node) != "Project":
            plan = self._cut(node, plan, columns, sorted(wanted))
        return plan, {kind: columns[kind] for kind in wanted}

    def _with_children(
        self, node: Node, done: list[tuple[Node, Columns]], own: Wanted, wanted: list[str]
    ) -> tuple[Node, Columns]:
        """Return a node over rewritten children, with columns in place of its own functions."""
        catalyst, name = self._catalyst, simple_name(node)
        children = catalyst.children(node)
        if name == "Union" and wanted:  # it takes columns by their position: these are the last
            sides = [
                self._cut(child, new, columns, wanted)
                for child, (new, columns) in zip(children, done, strict=True)
            ]
            union = catalyst.with_children(node, sides)
            return union, dict(zip(wanted, catalyst.output(union)[-len(wanted) :], strict=True))
        columns = done[0][1]
        if name == "Project" and (own or wanted):
            listed = [self._replaced(each, columns) for each in catalyst.items(node.projectList())]
            listed += [columns[kind] for kind in wanted]
            return catalyst.rebuilt(node, projectList=listed, child=done[0][0]), columns
        if own:
            value = getattr(node, _STREAMING[name])()
            fields = {_STREAMING[name]: self._replaced(value, columns)}
            return catalyst.rebuilt(node, child=done[0][0], **fields), columns
        nodes = [new for new, _ in done]
        return catalyst.with_children(node, [*nodes, *children[len(nodes) :]]), columns

    def _cut(self, original: Node, node: Node, columns: Columns, wanted: list[str]) -> Node:
        """Return a node with only the columns of the original node, and the wanted ones behind
        these.
        """
        visible = [*self._catalyst.output(original), *(columns[kind] for kind in wanted)]
        return self._note(original, self._catalyst.projected(node, visible, [])[0])

    def _leaf(self, node: Node, leaf: Leaf, wanted: Wanted) -> tuple[Node, Columns]:
        catalyst = self._catalyst
        hidden = [str(each.name()) for each in file_metadata(catalyst, node)]
        if not wanted and not hidden:
            return node, {}
        words = self._words(node, wanted)
        if not isinstance(leaf, AuditSource):
            raise _of_output(words, leaf)
        metadata, is_equal = (f"c{len(leaf.columns) + at}" for at in range(2))
        if metadata not in leaf.copy.columns:
            frame, others = with_metadata(catalyst, node)
            if not others:
                why = f"is taken of {leaf.name}, which has no files that Spark names"
                raise _refusal(words, why)
            if not self.attribution.sources.copied_again(leaf, frame):
                raise _refusal(words, f"is taken of {leaf.name}, {_COPIED}")
        if not wanted:
            return node, {}
        if leaf.copy.where(~leaf.copy[is_equal]).head(1):
            raise _refusal(words, f"differs from the metadata of the files of {leaf.name}")
        base = node if hidden else self._note(node, node.withMetadataColumns())
        values = file_values(catalyst.column(file_metadata(catalyst, base)[0]))
        columns = [values[kind] for kind in wanted]
        plan, own = catalyst.projected(base, catalyst.output(node), columns)
        named = [
            each.withName(FILE_FUNCTIONS[kind]) for each, kind in zip(own, wanted, strict=True)
        ]
        return self._note(node, plan), dict(zip(wanted, named, strict=True))

    def _words(self, leaf: Node, wanted: Wanted) -> Wanted:
        hidden = {str(e.name()): self.place(leaf) for e in file_metadata(self._catalyst, leaf)}
        return {**wanted, **hidden}

    def _replaced(self, expression: Expression, columns: Columns) -> Expression:
        """Return an expression with columns in place of functions."""
        if expression.deterministic():
            return expression
        kind = simple_class(expression)
        if kind in columns:
            return columns[kind]
        old = self._catalyst.items(expression.children())
        new = [self._replaced(child, columns) for child in old]
        return expression.withNewChildren(self._catalyst.scala(new)) if old else expression

    def _require_streaming(self, node: Node, wanted: Wanted) -> None:
        """Raise CarryError if a node may have rows of several files at the same time."""
        if not wanted:
            return
        name = simple_name(node)
        is_unknown = name == "Generate" and simple_class(node.generator()) not in _GENERATORS
        if name not in _STREAMING or is_unknown:
            word = WORDS.get(name, operation(node))
            raise _refusal(wanted, f"is taken after {word}, where Spark may know no file")
        python = getattr(self._catalyst.spark._jvm, _PATTERNS).PYTHON_UDF()
        if node.containsPattern(python):
            raise _refusal(wanted, "is taken beside or after a Python UDF, which reads rows ahead")

    def _require_no_copies(self, node: Node, wanted: Wanted) -> None:
        """Raise CarryError for files of the script's own outputs, in a plan that stays as it is."""
        leaf = self.attribution.sources.leaf_of(node)
        words = wanted if leaf is None else self._words(node, wanted)
        if words and leaf is not None and not isinstance(leaf, AuditSource):
            raise _of_output(words, leaf)
        own = dict.fromkeys(file_functions(self._catalyst, node), self.place(node))
        for child in [*self._catalyst.children(node), *self._catalyst.subqueries(node)]:
            self._require_no_copies(child, {**own, **wanted})

    def _note(self, original: Node, node: Node) -> Node:
        original = self._originals.get(self._catalyst.identity(original), original)
        self._originals[self._catalyst.identity(node)] = original
        return node


def file_values(metadata: Column) -> dict[str, Column]:
    """Return the values of functions of files, taken from the metadata of a row's file. Paths have
    another form there.
    """
    return {
        "InputFileBlockLength": metadata["file_block_length"],
        "InputFileBlockStart": metadata["file_block_start"],
        "InputFileName": F.regexp_replace(metadata["file_path"], "^file:/(?!/)", "file:///"),
    }


def _refusal(wanted: Wanted, why: str) -> CarryError:
    kind, place = next(iter(wanted.items()))
    return CarryError(
        f"{place}: {FILE_FUNCTIONS.get(kind, kind)} {why}: expected it in a select() or where() "
        "right after the read"
    )


def _of_output(wanted: Wanted, leaf: Leaf) -> CarryError:
    kind, place = next(iter(wanted.items()))
    return CarryError(
        f"{place}: {FILE_FUNCTIONS.get(kind, kind)} is taken of {leaf.name}, which the script has "
        "written: the audit reads a copy in other files. Write the name as a column of it"
    )
