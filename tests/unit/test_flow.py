"""The graph of a batch as the page draws it."""

from ledger.batch.pages.flow import flow
from ledger.core.declared_steps import DeclaredStep

TOPOLOGY = [
    DeclaredStep("orders", "source", ()),
    DeclaredStep("refunds", "source", ()),
    DeclaredStep("clean", "stage", ("orders",)),
    DeclaredStep("joined", "stage", ("clean", "refunds")),
    DeclaredStep("sink", "sink", ("joined",)),
    DeclaredStep("totals", "combine", ("joined",), after=True),
]


def run(name, state="committed", rows=10):
    """A step's newest run."""
    counts = {"input": rows, "output": rows, "failed": 0, "duplicates": 0, "seconds": 1.0}
    return {"name": name, "state": state, **counts}


def test_a_loss_is_on_the_edges_of_its_source():
    """At a join a refund that is lost marks the edge from the refunds; an order that is, that from
    the step which passes orders on. One that did not parse marks its source alone.
    """
    losses = [
        {"step": "joined", "source": "orders", "records": 3, "missing": 1},
        {"step": "joined", "source": "refunds", "records": 1, "missing": 0},
        {"step": "orders", "source": "orders", "records": 2, "missing": 2},
    ]
    steps, edges = flow(TOPOLOGY, [run("orders", rows=8)], losses, [])
    lost = {(edge["from"], edge["to"]): edge["lost"] for edge in edges}
    assert lost == {
        ("orders", "clean"): 0,
        ("clean", "joined"): 3,
        ("refunds", "joined"): 1,
        ("joined", "sink"): 0,
        ("joined", "totals"): 0,
    }
    missing = {(edge["from"], edge["to"]): edge["missing"] for edge in edges if edge["missing"]}
    assert missing == {("clean", "joined"): 1}
    assert {step["name"]: step["missing"] for step in steps if step["lost"]} == {
        "orders": 2,
        "joined": 1,
    }
    assert {step["name"]: step["lost"] for step in steps if step["lost"]} == {
        "orders": 2,
        "joined": 4,
    }


def test_an_edge_says_what_was_passed_on_and_whether_it_was_read():
    """Rows of a step that has run; read once a run of its reader counts."""
    runs = [run("orders", rows=8), run("clean", "running")]
    dropped = [{"step": "clean", "reason": "test order", "records": 2}]
    steps, edges = flow(TOPOLOGY, runs, [], dropped)
    first, second = edges[0], edges[1]
    assert (first["rows"], first["read"]) == (8, False)
    assert (second["rows"], second["read"]) == (10, False)
    assert steps[2]["dropped"] == [{"reason": "test order", "rows": 2}]
    assert [step["state"] for step in steps] == ["committed", None, "running", None, None, None]
    assert [step["name"] for step in steps if step["after"]] == ["totals"]
    _, edges = flow(TOPOLOGY, [run("orders"), run("clean")], [], [])
    assert edges[0]["read"]


def test_a_step_that_ran_elsewhere_names_the_batch():
    """What follows the settlement runs in the last batch of a family: the others say where; one
    that has run here does not.
    """
    steps, _ = flow(TOPOLOGY, [run("orders")], [], [], {"totals": 7, "orders": 7})
    assert {step["name"]: step["ran_in"] for step in steps if step["ran_in"]} == {"totals": 7}
    steps, _ = flow(TOPOLOGY, [run("totals")], [], [], {"totals": 7})
    assert [step["ran_in"] for step in steps] == [None] * len(TOPOLOGY)
