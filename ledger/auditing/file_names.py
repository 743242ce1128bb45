"""Refuse functions that read the names of files, which a copy of their input does not have."""

from collections.abc import Iterator

from ledger.auditing.attribution import Attribution
from ledger.auditing.routes import sources_in
from ledger.errors import CarryError
from ledger.lineage.catalyst import Catalyst, Expression, Node

_FUNCTIONS = {
    "InputFileBlockLength": "input_file_block_length()",
    "InputFileBlockStart": "input_file_block_start()",
    "InputFileName": "input_file_name()",
}

_METADATA = "__metadata_col"  # Spark's mark of an attribute that is a file's, not a row's


def require_no_file_names(attribution: Attribution, node: Node) -> None:
    """Raise CarryError for an expression over a source that reads its file or its position."""
    catalyst = attribution.catalyst
    leaf = attribution.sources.leaf_of(node)
    if leaf is not None:
        output = catalyst.output(node)
        hidden = [each for each in output if each.metadata().contains(_METADATA)]
        if hidden:
            raise _refusal(attribution, node, str(hidden[0].name()))
        return
    below = [*catalyst.children(node), *catalyst.subqueries(node)]
    for child in below:
        require_no_file_names(attribution, child)
    words = [
        _FUNCTIONS[kind]
        for expression in catalyst.items(node.expressions())
        for kind in _random_leaves(catalyst, expression)
        if kind in _FUNCTIONS
    ]
    if words and any(sources_in(attribution, child) for child in below):
        raise _refusal(attribution, node, words[0])


def _random_leaves(catalyst: Catalyst, expression: Expression) -> Iterator[str]:
    """The classes of the innermost expressions that are not deterministic."""
    if expression.deterministic():
        return
    random = [c for c in catalyst.items(expression.children()) if not c.deterministic()]
    for child in random:
        yield from _random_leaves(catalyst, child)
    if not random:
        yield str(expression.getClass().getSimpleName())


def _refusal(attribution: Attribution, node: Node, word: str) -> CarryError:
    return CarryError(
        f"{attribution.place(node)}: {word} cannot be audited, because the function gets a copy of "
        "its input in other files: add it as a column before the audit, and pass that frame"
    )
