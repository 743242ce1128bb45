"""Refuse functions that read the names of files, which a copy of their input does not have."""

from collections.abc import Iterator

from ledger.auditing.attribution import Attribution
from ledger.auditing.routes import sources_in
from ledger.errors import CarryError
from ledger.lineage.catalyst import Catalyst, Expression, Node

FILE_FUNCTIONS = {
    "InputFileBlockLength": "input_file_block_length()",
    "InputFileBlockStart": "input_file_block_start()",
    "InputFileName": "input_file_name()",
}

_METADATA = "__metadata_col"  # Spark's mark of an attribute that is a file's, not a row's


def without_file_names(attribution: Attribution) -> Attribution:
    """Return an attribution. Raises CarryError if an expression over a source reads its file or
    its position.
    """

    catalyst = attribution.catalyst

    def require(node: Node) -> None:
        below = [*catalyst.children(node), *catalyst.subqueries(node)]
        if attribution.sources.leaf_of(node) is not None:
            words = [str(each.name()) for each in file_metadata(catalyst, node)]
        elif any(sources_in(attribution, child) for child in below):
            words = [FILE_FUNCTIONS[kind] for kind in file_functions(catalyst, node)]
        else:
            return
        for child in below:
            require(child)
        if words:
            raise CarryError(
                f"{attribution.place(node)}: {words[0]} cannot be audited, because the function "
                "gets a copy of its input in other files: add it as a column before the audit, and "
                "pass that frame"
            )

    require(attribution.plan)
    return attribution


def file_metadata(catalyst: Catalyst, leaf: Node) -> list[Expression]:
    """Return the attributes of a leaf that Spark hides unless they are asked for."""
    return [each for each in catalyst.output(leaf) if each.metadata().contains(_METADATA)]


def file_functions(catalyst: Catalyst, node: Node) -> list[str]:
    """Return the classes of ``FILE_FUNCTIONS`` in a node's own expressions."""
    return [
        kind
        for expression in catalyst.items(node.expressions())
        for kind in _random_leaves(catalyst, expression)
        if kind in FILE_FUNCTIONS
    ]


def _random_leaves(catalyst: Catalyst, expression: Expression) -> Iterator[str]:
    """Yield the classes of the innermost expressions that are not deterministic."""
    if expression.deterministic():
        return
    random = [c for c in catalyst.items(expression.children()) if not c.deterministic()]
    for child in random:
        yield from _random_leaves(catalyst, child)
    if not random:
        yield str(expression.getClass().getSimpleName())
