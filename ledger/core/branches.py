"""Losses in one branch of a pipeline, which withhold a record from the sinks of all branches."""

from collections.abc import Collection, Mapping, Sequence


def loss_in_a_branch(
    source: str,
    inputs: Mapping[str, Sequence[str]],
    stages: Collection[str],
    sinks: Collection[str],
) -> str:
    """Return a sentence on the stages that feed only some of the sinks that a source feeds; empty
    if there are none.

    Args:
        source: the name of the source.
        inputs: the steps that each step reads.
        stages: the stages that can lose a record and declare no expected losses.
        sinks: the sinks of the pipeline.
    """
    feeding = {name: _upstream(name, inputs) for name in (*stages, *sinks)}
    fed = [sink for sink in sinks if source in feeding[sink]]
    branches = [
        stage
        for stage in stages
        if source in feeding[stage] and 0 < sum(stage in feeding[sink] for sink in fed) < len(fed)
    ]
    if not branches:
        return ""
    stage = f"stage {branches[0]}" if len(branches) == 1 else f"one of {', '.join(branches)}"
    return (
        f"a record that is lost at {stage} is withheld from all of its sinks ({', '.join(fed)}):"
        " name intended losses in expected= of the stage"
    )


def _upstream(name: str, inputs: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the steps that a step reads, directly or through other steps."""
    upstream: set[str] = set()
    pending = [*inputs.get(name, ())]
    while pending:
        before = pending.pop()
        if before not in upstream:
            upstream.add(before)
            pending += inputs.get(before, ())
    return upstream
