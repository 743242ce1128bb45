"""The pages' data, asked of Airflow's own API server: what it holds, and who gets it."""

from datetime import timedelta
from importlib import resources

import pytest
from fastapi.testclient import TestClient

from ledger import ParquetSink
from ledger.airflow import plugin
from ledger.airflow.pages import application
from ledger.airflow.pipelines import selection
from ledger.batch.combine_runs import open_due
from ledger.batch.opening import open_batch
from ledger.batch.step_runs import Attempt
from ledger.core.run_request import Interval, RunKey
from ledger.errors import InputError
from ledger.settings import Settings
from tests.support.ledgers import START, pipeline
from tests.support.users import user

ROUTES = (
    "api/overview",
    "api/pipeline?name=chain",
    "api/run?dag_id=chain&run_id=run",
    "api/batch?number=1",
    "api/failed?batch=1",
    "api/replay?batch=1",
    "api/record?number=1",
    "api/tree?number=1",
    "static/0/pages.js",
)
# As which roles each route reads: no route but those that show records, or ask whether their keys
# could be read or were forgotten, has the role that may read them.
READER, RECORDS = "ledger_reader", "ledger_payload_reader"
ROLES = {
    "api/overview": {READER},
    "api/pipeline": {READER},
    "api/run": {READER},
    "api/batch": {READER, RECORDS},  # what to do depends on whether keys could be read
    "api/failed": {READER, RECORDS},
    "api/replay": {READER, RECORDS},  # what is forgotten is not replayed
    "api/record": {READER, RECORDS},
    "api/tree": {READER, RECORDS},
    "static": set(),
}
PER_DAG = "tests.support.users.PerDag"


@pytest.fixture(scope="module")
def server():
    """Airflow's API server with the plugin, in this process."""
    from airflow.api_fastapi.app import create_app
    from airflow.utils.db import initdb

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__AUTH_MANAGER", PER_DAG)
        patch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "secret" * 12)
        initdb()
        yield TestClient(create_app("core"), raise_server_exceptions=False)


@pytest.fixture
def ask(server, ledger):
    """Asks the pages for something in the name of a user of a role."""
    from airflow.api_fastapi.app import get_auth_manager

    application.connected.cache_clear()

    def asked(path, role="admin", name="somebody"):
        token = get_auth_manager().generate_jwt(user(name, role))
        return server.get(f"/ledger/{path}", headers={"Authorization": f"Bearer {token}"})

    yield asked
    if application.connected.cache_info().currsize:
        application.connected(None).dispose()
    application.connected.cache_clear()


def lost(ledger, *numbers, name="chain", **options):
    """A settled batch of ten records, of which the sink lost some; its roots."""
    return lost_of(ledger, pipeline(name, **options), *numbers)


def lost_of(ledger, flow, *numbers):
    """The same, of a pipeline."""
    batch, roots = ledger.whole_batch(flow, lose_sink=numbers)
    ledger.settle(batch.batch_id)
    return batch.batch_id, roots


def combining(ledger, batch, result):
    """A running run of a pipeline's combine."""
    step = next(step for step in result.combined() if step.name == "totals")
    run = open_due(ledger.database, batch, step, Attempt())
    assert run is not None
    return run


@pytest.mark.parametrize("route", ROUTES)
def test_no_user_sees_anything_without_signing_in(server, ledger, route):
    """Every route asks who it is, the files of the pages included."""
    lost(ledger, 1)
    assert server.get(f"/ledger/{route}").status_code == 401
    forged = {"Authorization": "Bearer e30.e30.e30"}
    assert server.get(f"/ledger/{route}", headers=forged).status_code == 403


def test_all_routes_are_tried_above(server):
    """A new route is in the list, and has no method but GET; none describes the others."""
    web = application.application()
    paths = {route.path.split("/{")[0].lstrip("/") for route in web.routes}
    assert paths == {route.split("?")[0].split("/0")[0] for route in ROUTES}
    assert all(route.methods == {"GET"} for route in web.routes)


def test_everybody_sees_the_pipelines_whose_dags_they_may_read(ask, ledger):
    """The others are as if they were not there, or forbidden if they are asked for."""
    lost(ledger, 1)
    other, roots = lost(ledger, 2, name="hidden")
    assert {pipeline["name"] for pipeline in ask("api/overview").json()["pipelines"]} == {
        "chain",
        "hidden",
    }
    seen = ask("api/overview", "viewer").json()
    assert {pipeline["name"] for pipeline in seen["pipelines"]} == {"chain"}
    assert {batch_["pipeline"] for batch_ in seen["recent"] + seen["waiting"]} == {"chain"}
    for path in (
        "api/pipeline?name=hidden",
        "api/run?dag_id=hidden&run_id=run",
        f"api/batch?number={other}",
        f"api/failed?batch={other}",
        f"api/replay?batch={other}",
        f"api/record?number={roots[2]}",
        f"api/tree?number={roots[2]}",
    ):
        assert ask(path, "viewer").status_code == 403, path
        assert ask(path).status_code != 403, path


def test_records_need_access_to_task_logs(ask, ledger):
    """Logs quote records: who may not read them sees counts alone."""
    batch, roots = lost(ledger, 1)
    assert ask(f"api/batch?number={batch}", "viewer", "blind").status_code == 200
    for path in (f"failed?batch={batch}", f"record?number={roots[1]}", f"tree?number={roots[1]}"):
        assert ask(f"api/{path}", "viewer", "blind").status_code == 403
    assert ask(f"api/failed?batch={batch}", "viewer").status_code == 200


def test_a_viewer_may_not_run(ask, ledger):
    """The page says so; Airflow's API would refuse the run."""
    batch, roots = lost(ledger, 1)
    for path in (f"api/batch?number={batch}", f"api/record?number={roots[1]}"):
        assert [ask(path, role).json()["may"] for role in ("viewer", "user")] == [[], ["replay"]]
    everything = ["replay", "accept", "release"]
    assert ask(f"api/batch?number={batch}", "admin").json()["may"] == everything


def test_a_run_says_whether_its_conf_may_name_a_batch(ask, ledger):
    """That of a pipeline of the ledger or of one of its forms may; that of any other DAG names
    something else.
    """
    lost(ledger, 1)
    answers = {
        dag_id: ask(f"api/run?dag_id={dag_id}&run_id=run").json()["knows_dag"]
        for dag_id in ("chain", "ledger_accept", "ledger_accept.stock", "another")
    }
    assert answers == {
        "chain": True,
        "ledger_accept": True,
        "ledger_accept.stock": False,
        "another": False,
    }


def test_the_overview_says_what_waits(ask, ledger):
    """Failed and quarantined batches wait for a person, an open one is under way, the rest is
    complete.
    """
    failed, _ = lost(ledger, 1)
    quarantined, _ = ledger.whole_batch(
        pipeline("strict", max_replays=0), run_id="b", lose_sink=[1]
    )
    ledger.settle(quarantined.batch_id)
    done, _ = ledger.whole_batch(pipeline("good"), run_id="c")
    ledger.settle(done.batch_id)
    under_way = ledger.open(pipeline("slow"))
    ledger.emit(under_way, 3)
    data = ask("api/overview").json()
    waiting = {batch["batch_id"]: batch["state"] for batch in data["waiting"]}
    assert waiting == {failed: "failed", quarantined.batch_id: "quarantined"}
    (only,) = data["open"]
    assert (only["pipeline"], only["committed"], only["steps"]) == ("slow", 1, 3)
    assert only["deadline"] > only["opened_at"]
    latest = {pipeline["name"]: pipeline["latest"]["state"] for pipeline in data["pipelines"]}
    assert latest == {
        "chain": "failed",
        "strict": "quarantined",
        "good": "unpublished",
        "slow": "open",
    }
    assert [batch["batch_id"] for batch in data["recent"]] == sorted(
        [failed, quarantined.batch_id, done.batch_id, under_way.batch_id], reverse=True
    )


def test_published_and_tolerated_batches_are_distinguished(ask, ledger):
    """A batch is complete once its sinks have published it, or tolerated by its policy."""
    done, _ = ledger.whole_batch(pipeline())
    ledger.settle(done.batch_id)
    few, _ = lost(ledger, 1, name="lenient", allow_failed=0.2)
    ledger.deliver()
    states = {batch["batch_id"]: batch["state"] for batch in ask("api/overview").json()["recent"]}
    assert states == {done.batch_id: "complete", few: "tolerated"}


def test_a_pipeline_has_its_intervals_in_order(ask, ledger):
    """Replays are no intervals; they are among the latest batches."""
    flow = pipeline()
    second, _ = ledger.whole_batch(flow, run_id="b", day=1)
    first, _ = lost(ledger, 1)
    replay = ledger.replay(flow, first)
    data = ask("api/pipeline?name=chain").json()
    assert [batch["batch_id"] for batch in data["intervals"]] == [first, second.batch_id]
    assert data["recent"][0]["batch_id"] == replay.batch_id


def test_a_batch_shows_the_edge_that_cost_records(ask, ledger):
    """Where a record is lost the edge says how many and why; the steps have their rows."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 10)
    ledger.run_middle(batch, roots, lose=[roots[0]], fail={roots[1]: "bad %_\\ value"})
    ledger.run_sink(batch, roots[2:], lose=[roots[5]])
    ledger.settle(batch.batch_id)
    data = ask(f"api/batch?number={batch.batch_id}").json()
    edges = {(edge["from"], edge["to"]): edge["lost"] for edge in data["edges"]}
    assert edges == {("source", "middle"): 2, ("middle", "sink"): 1}
    failures = {
        (failure["step"], failure["reason"]): failure["records"] for failure in data["failures"]
    }
    assert failures == {
        ("middle", "bad %_\\ value"): 1,
        ("middle", "lost"): 1,
        ("sink", "lost"): 1,
    }
    assert [(step["name"], step["lost"]) for step in data["steps"]] == [
        ("source", 0),
        ("middle", 2),
        ("sink", 1),
    ]
    assert (data["can"], data["outcome"]) == (["replay"], "incomplete")
    assert "yet to publish what is acked" in data["because"]
    assert [
        (publication["sink"], publication["state"]) for publication in data["publications"]
    ] == [("sink", "ready")]


def test_a_preview_says_what_a_replay_takes(ask, ledger):
    """Of one reason only what has that reason, be it full of a pattern's characters; the conf is
    what the batch's DAG is run with.
    """
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 4)
    failed = {roots[0]: "a_b", roots[1]: "axb", roots[2]: "a_b"}
    ledger.run_middle(batch, roots, fail=failed)
    ledger.run_sink(batch, roots[3:])
    ledger.settle(batch.batch_id)
    data = ask(f"api/replay?batch={batch.batch_id}&step=middle&reason=a_b").json()
    assert data["records"] == 2
    (group,) = data["groups"]
    assert (group["step"], group["reason"], group["records"]) == ("middle", "a_b", 2)
    assert data["dag_id"] == "dag"
    asked = {"replay_of": batch.batch_id, "step": "middle", "reason": "a\\_b"}
    assert data["conf"] == {**asked, "conn_id": None}
    assert data["steps"] == ["source", "middle", "sink"]
    single = ask(f"api/replay?batch={batch.batch_id}&record={roots[1]}").json()
    assert (single["records"], single["conf"]["record"]) == (1, roots[1])
    assert ask(f"api/replay?batch={batch.batch_id}&quarantined=true").json()["records"] == 0


def test_failed_records_come_by_page_and_by_search(ask, ledger, monkeypatch):
    """Each page says where the next one begins; a search finds a number or a part of a reason."""
    from ledger.store.queries import records

    monkeypatch.setattr(records, "PAGE", 2)
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 5)
    reasons = dict(zip(roots, ("Over limit", "lost%", "over", "x", "y"), strict=True))
    ledger.run_middle(batch, roots, fail=reasons)
    ledger.run_sink(batch, [])
    ledger.settle(batch.batch_id)
    seen, after = [], 0
    while after is not None:
        page = ask(f"api/failed?batch={batch.batch_id}&after={after}").json()
        assert len(page["records"]) <= 2
        seen += [row["root_id"] for row in page["records"]]
        after = page["next"]
    assert seen == list(roots)

    def searched(search):
        data = ask(f"api/failed?batch={batch.batch_id}&search={search}").json()["records"]
        return [row["root_id"] for row in data]

    assert searched("OVER") == [roots[0], roots[2]]
    assert searched("%25") == [roots[1]]
    assert searched(roots[3]) == [roots[3]]
    by_state = ask(f"api/failed?batch={batch.batch_id}&status=recovered").json()["records"]
    assert by_state == []


def test_a_search_that_takes_too_long_is_stopped_once(ask, ledger, monkeypatch):
    """The answer says what to do; the ledger is not asked again by itself."""
    from ledger.store.queries import pages, records

    batch, _ = lost(ledger, 1)
    asked = []

    def slow(connection, *arguments, **options):
        asked.append(options)
        return connection.exec_driver_sql("SELECT pg_sleep(5)").all()

    monkeypatch.setattr(pages, "LONGEST", "50ms")
    monkeypatch.setattr(records, "page", slow)
    answer = ask(f"api/failed?batch={batch}&search=x")
    assert answer.status_code == 503
    assert "Ask for less at once" in answer.json()["detail"]
    assert len(asked) == 1


def test_what_cannot_be_asked_is_refused(ask, ledger):
    """Numbers that PostgreSQL does not have, a character that it does not store."""
    batch, _ = lost(ledger, 1)
    for path in (
        f"batch?number={2**63}",
        "record?number=0",
        f"failed?batch={batch}&search=%00",
        "run?dag_id=&run_id=run",
    ):
        assert ask(f"api/{path}").status_code == 422, path


def test_failures_without_end_are_counted_whole(ask, ledger, monkeypatch):
    """The table of reasons ends somewhere and says how many there are; the graph counts all."""
    from ledger.store.queries import failures

    monkeypatch.setattr(failures, "GROUPS", 2)
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 5)
    ledger.run_middle(batch, roots, fail={root: f"amount {root}" for root in roots})
    ledger.run_sink(batch, [])
    ledger.settle(batch.batch_id)
    data = ask(f"api/batch?number={batch.batch_id}").json()
    assert (len(data["failures"]), data["groups"]) == (2, 5)
    assert [step["lost"] for step in data["steps"]] == [0, 5, 0]


def test_a_preview_says_what_it_leaves_out_and_why(ask, ledger):
    """Records that wait, and a replay's limit."""
    batch, roots = lost(ledger, *range(6), replay_limit=2)
    with ledger.database.plain.begin() as connection:
        connection.exec_driver_sql(
            f"UPDATE failed_message SET not_before = '2999-01-01' WHERE message_id = {roots[1]}"
        )
    data = ask(f"api/replay?batch={batch}").json()
    assert (data["match"], data["records"], data["whole"]) == (5, 2, False)
    assert {**data["waiting"], "not_before": data["waiting"]["not_before"][:4]} == {
        "due": 5,
        "replaying": 0,
        "later": 1,
        "not_before": "2999",
        "quarantined": 0,
    }
    assert ask(f"api/batch?number={batch}").json()["can"] == ["replay"]


def test_a_replay_leaves_its_records_to_their_original(ask, ledger):
    """What failed again in a replay is replayed from the original's page."""
    flow = pipeline()
    batch, _ = lost(ledger, 1)
    replay = ledger.replay(flow, batch)
    roots = ledger.emit_replay(replay)
    ledger.run_middle(replay, roots, lose=roots)
    ledger.run_sink(replay, [])
    ledger.settle(replay.batch_id)
    data = ask(f"api/batch?number={replay.batch_id}").json()
    assert (data["batch"]["failed"], data["can"]) == (1, [])
    assert [batch["batch_id"] for batch in data["family"]] == [replay.batch_id, batch]


def family(ledger, flow):
    """A batch of ten records of which five failed, and a replay that lost two of these again; both
    numbers, and the records that are failed still.
    """
    batch, roots = lost_of(ledger, flow, *range(5))
    replay = ledger.replay(flow, batch)
    emitted = ledger.emit_replay(replay)
    ledger.run_middle(replay, emitted, fail={emitted[0]: "no such city"}, lose=[emitted[1]])
    ledger.run_sink(replay, emitted[2:])
    ledger.settle(replay.batch_id)
    return batch, replay.batch_id, roots[:2]


def test_every_batch_of_a_family_shows_what_became_of_it_by_today(ask, ledger):
    """Three of five records are recovered: each page has the counts of all, its own are those of
    its attempt, and what is missing in its graph is missing today.
    """
    batch, replay, _ = family(ledger, pipeline())
    for number in (batch, replay):
        data = ask(f"api/batch?number={number}").json()
        today = {name: data["today"][name] for name in ("acked", "recovered", "failed")}
        assert today == {"acked": 8, "recovered": 3, "failed": 2}
        assert (data["today"]["batch_id"], data["today"]["state"]) == (batch, "failed")
        attempts = {batch["batch_id"]: batch["failed_at_settlement"] for batch in data["family"]}
        assert attempts == {batch: 5, replay: 2}
    data = ask(f"api/batch?number={batch}").json()
    assert [(edge["lost"], edge["missing"]) for edge in data["edges"]] == [(0, 0), (5, 2)]
    assert [(row["recovered"], row["failed"]) for row in data["failures"]] == [(3, 2)]


def test_what_is_recovered_or_accepted_is_missing_nowhere(ask, ledger):
    """No step and no edge of the graph misses a record once each is recovered, accepted, or has
    been read again by the batch that replaced its own; what was lost is counted still.
    """
    flow = pipeline()
    batch, replay, _ = family(ledger, flow)
    ledger.quarantine("no such customers", "somebody", batch_id=batch)
    old, _ = ledger.whole_batch(flow, 10, "old", 1, lose_sink=[1, 2, 3])
    ledger.settle(old.batch_id)
    for number in (batch, replay):
        data = ask(f"api/batch?number={number}").json()
        assert sum(edge["lost"] for edge in data["edges"]) in (5, 2)
        assert [edge["missing"] for edge in data["edges"]] == [0, 0]
        assert [step["missing"] for step in data["steps"]] == [0, 0, 0]
        assert (data["today"]["accepted"], data["today"]["state"]) == (2, "unpublished")
    interval = Interval(START + timedelta(days=1), START + timedelta(days=2))
    key = RunKey("dag", "new")
    new = open_batch(ledger.database, Settings(data="/data"), flow, key, interval, reprocess=True)
    assert ask(f"api/batch?number={old.batch_id}").json()["batch"]["replaced_by"] == new.batch_id
    ledger.run_all(new, 10)
    data = ask(f"api/batch?number={old.batch_id}").json()
    assert [(edge["lost"], edge["missing"]) for edge in data["edges"]] == [(0, 0), (3, 0)]
    assert (data["batch"]["superseded"], data["batch"]["replaced_by"]) == (3, new.batch_id)
    replaces = ask(f"api/batch?number={new.batch_id}").json()["batch"]["replaces_batch_id"]
    assert replaces == old.batch_id


def test_a_combine_that_ran_with_a_replay_has_run(ask, ledger):
    """It runs in the batch of the family that was settled last: the original's page names it."""
    flow = pipeline("combined")

    @flow.combine(reads="middle")
    def totals(rows):
        return rows

    flow.sink("report", ParquetSink("report"), reads="totals")
    batch, _ = lost_of(ledger, flow, 1)
    assert [step["ran_in"] for step in ask(f"api/batch?number={batch}").json()["steps"]][-1] is None
    replay = ledger.replay(flow, batch)
    roots = ledger.emit_replay(replay)
    ledger.run_middle(replay, roots)
    ledger.run_sink(replay, roots)
    ledger.settle(replay.batch_id)
    ledger.finish(combining(ledger, replay.batch_id, flow), [])
    for number, ran_in in ((batch, replay.batch_id), (replay.batch_id, None)):
        steps = {step["name"]: step for step in ask(f"api/batch?number={number}").json()["steps"]}
        assert steps["totals"]["ran_in"] == ran_in
        assert steps["totals"]["state"] == (None if ran_in else "committed")


def test_a_preview_says_what_speaks_against_a_replay(ask, ledger):
    """Of each cause: whether its records did not parse, how many failed in the same way in the last
    replay, and how many are quarantined after one more failure.
    """
    flow = pipeline(max_replays=2)
    batch, _, (_, same) = family(ledger, flow)
    ledger.change(
        "UPDATE failed_root SET step = 'source', cause = 'unparsed', reason = 'not a number'"
        f" WHERE message_id = {same}"
    )
    groups = ask(f"api/replay?batch={batch}").json()["groups"]
    counts = {(group.pop("step"), group.pop("reason")): group for group in groups}
    both = {"batch_id": batch, "pipeline": flow.name, "records": 1, "last": 1, "max_replays": 2}
    assert counts == {
        ("middle", "no such city"): {
            **both,
            "cause": "rejected",
            "words": "no such city",
            "repeated": 0,
        },
        ("source", "not a number"): {
            **both,
            "cause": "unparsed",
            "words": "not a number",
            "repeated": 1,
        },
    }
    other, _ = lost(ledger, 1, name="fresh", max_replays=2)
    (group,) = ask(f"api/replay?batch={other}").json()["groups"]
    assert (group["repeated"], group["last"]) == (0, 0)
    assert (group["cause"], group["words"], group["reason"]) == ("lost", None, "lost")


def test_a_replay_takes_the_chosen_causes_alone(ask, ledger):
    """A conf with causes, as the dialog makes it, claims their records and no other; one that is no
    step and reason is refused.
    """
    flow = pipeline()
    batch, _, (choice, _) = family(ledger, flow)
    causes = [
        {"step": "middle", "cause": "rejected", "words": "no such city"},
        {"step": "middle", "cause": "late", "words": None},
    ]
    asked = selection({"replay_of": batch, "causes": causes})
    replay = ledger.replay(flow, batch, "chosen", causes=asked.causes)
    claimed = ledger.rows("SELECT message_id FROM failed_message WHERE status = 'replaying'")
    assert [row.message_id for row in claimed] == [choice]
    rows = ledger.rows(f"SELECT selection FROM batch WHERE batch_id = {replay.batch_id}")
    assert [row.selection for row in rows] == [{"causes": causes}]
    with pytest.raises(InputError, match=r"expected causes as \[\{\"step\""):
        selection({"causes": ["no such city"]})


def test_what_is_tolerated_needs_no_decision(ask, ledger):
    """Up to the very share; an abandoned interval waits until a later batch reads it."""
    flow = pipeline("lenient", allow_failed=0.29)
    batch, _ = ledger.whole_batch(flow, 100, lose_sink=range(29))
    ledger.settle(batch.batch_id)
    over, _ = ledger.whole_batch(flow, 100, "over", 1, lose_sink=range(30))
    ledger.settle(over.batch_id)
    gone = ledger.open(pipeline())
    assert ledger.abandon(gone.batch_id, "its source never came")
    waiting = {batch["batch_id"]: batch["state"] for batch in ask("api/overview").json()["waiting"]}
    assert waiting == {over.batch_id: "failed", gone.batch_id: "abandoned"}
    states = {batch["batch_id"]: batch["state"] for batch in ask("api/overview").json()["recent"]}
    assert states[batch.batch_id] == "tolerated"
    again, _ = ledger.whole_batch(pipeline(), run_id="again")
    assert gone.batch_id not in [
        batch["batch_id"] for batch in ask("api/overview").json()["waiting"]
    ]
    (only,) = ask("api/pipeline?name=chain").json()["intervals"]
    assert only["batch_id"] == again.batch_id


def test_a_run_has_its_batches(ask, ledger):
    """By the ids that Airflow's page of a run passes on."""
    batch, _ = lost(ledger, 1)
    data = ask("api/run?dag_id=dag&run_id=run").json()["batches"]
    assert [batch["batch_id"] for batch in data] == [batch]
    assert ask("api/run?dag_id=dag&run_id=other").json()["batches"] == []
    lost(ledger, 1, name="hidden")
    seen = ask("api/run?dag_id=dag&run_id=run", "viewer").json()["batches"]
    assert [item["pipeline"] for item in seen] == ["chain"]
    assert len(ask("api/run?dag_id=dag&run_id=run").json()["batches"]) == 2


def test_a_record_reads_as_explain_prints_it(ask, ledger):
    """Verdict, where it was last seen, attempts, what to do."""
    _, roots = lost(ledger, 1)
    data = ask(f"api/record?number={roots[1]}").json()
    assert (data["verdict"], data["last_seen"]) == ("failed", "middle")
    assert [attempt["outcome"] for attempt in data["attempts"]] == ["failed"]
    assert "ackledger replay" in " ".join(data["next"])
    assert ask(f"api/record?number={roots[2]}").json()["verdict"] == "acked"


def test_a_batch_on_hold_has_what_to_decide_by(ask, ledger):
    """Steps, reasons, a sample of records, the losses in the graph, why it is on hold and both ways
    on, of which the release is an action; its counts say that nothing is decided."""
    flow = pipeline(hold_above=0.1)
    batch, roots = ledger.whole_batch(flow, 10, lose_middle=[1, 2], lose_sink=[4])
    ledger.settle(batch.batch_id)
    data = ask(f"api/batch?number={batch.batch_id}").json()
    lost = {"source": "source", "reason": "lost"}
    assert data["preview"] == [
        {**lost, "step": "middle", "records": 2},
        {**lost, "step": "sink", "records": 1},
    ]
    assert (data["batch"]["pending"], data["batch"]["failed"], data["failures"]) == (10, 0, [])
    assert {step["name"]: step["lost"] for step in data["steps"]} == {
        "source": 0,
        "middle": 2,
        "sink": 1,
    }
    assert [edge["lost"] for edge in data["edges"]] == [2, 1]
    assert data["because"].startswith(f"batch {batch.batch_id} is on hold. 3 of 10 records failed")
    assert [what for what, _ in data["commands"]] == [
        "Fix it and rerun",
        "Or publish the rest anyway",
    ]
    assert data["can"] == ["release"]
    listed = ask(f"api/failed?batch={batch.batch_id}").json()["records"]
    assert [(row["message_id"], row["step"]) for row in listed] == [
        (roots[1], "middle"),
        (roots[2], "middle"),
        (roots[4], "sink"),
    ]
    page = ask(f"api/failed?batch={batch.batch_id}&step=sink&reason=lost&search=lost").json()
    assert [row["root_id"] for row in page["records"]] == [roots[4]]
    assert page["next"] is None
    assert ask(f"api/failed?batch={batch.batch_id}&status=failed").json()["records"] == listed
    record = ask(f"api/record?number={roots[4]}").json()
    assert (record["verdict"], record["missing"]) == (
        "on hold: not decided",
        "it would fail at sink: lost",
    )


def test_a_batch_that_damage_holds_is_not_released(ask, ledger):
    """It has no preview and no release among its actions, and says which step to run again."""
    batch, roots = ledger.whole_batch(pipeline(), 4)
    ledger.change(f"DELETE FROM ledger_delta WHERE root_id = {roots[3]}")
    ledger.settle(batch.batch_id)
    data = ask(f"api/batch?number={batch.batch_id}").json()
    assert (data["preview"], data["can"]) == ([], [])
    assert [what for what, _ in data["commands"]] == ["To go on"]


def test_what_is_not_there_is_said_so(ask, ledger):
    """A batch, a record, a file that does not exist."""
    assert ask("api/batch?number=99").status_code == 404
    assert ask("api/batch?number=99").json()["detail"] == "batch 99 is not in the ledger"
    assert ask("api/record?number=99").status_code == 404


def test_no_file_but_the_pages_own_is_served(ask, tmp_path):
    """Neither by a path that leads out of their folder, nor by one of its own."""
    (tmp_path / "secret.txt").write_text("secret")
    assert ask("static/0/vendor/LICENSES.txt").status_code == 200
    for name in (
        "none.js",
        "../application.py",
        "%2e%2e/application.py",
        "vendor/../../access.py",
        f"/{tmp_path}/secret.txt",
        f"{tmp_path}/secret.txt".replace("/", "%2F"),
        "vendor",
        "",
    ):
        assert ask(f"static/0/{name}").status_code == 404, name


def test_a_ledger_that_is_away_is_said_to_be(ask, monkeypatch):
    """In a sentence without its password."""
    application.connected.cache_clear()
    away = "postgresql+psycopg2://somebody:secret@127.0.0.1:1/none"
    monkeypatch.setenv("ACKLEDGER_DATABASE_URL", away)
    data = ask("api/overview")
    assert data.status_code == 503
    assert "did not answer" in data.json()["detail"]
    assert "secret" not in data.json()["detail"]


def test_nothing_is_written(ask, ledger):
    """The pages' connections cannot: every transaction is read-only, as a role that only reads."""
    for role in (READER, RECORDS):
        asked = "SELECT current_user, current_setting('transaction_read_only')"
        database = application.ledger(None, role)
        row = database.transact(lambda c: c.exec_driver_sql(asked).one())  # noqa: B023
        assert tuple(row) == (role, "on")
        assert database.plain is application.connected(None).plain


def test_each_route_reads_as_the_least_role(ask, ledger, monkeypatch):
    """As ``ledger_reader``, and what that may not read as ``ledger_payload_reader``: no route as
    any other role, and whose batch or record it is asked as the first alone."""
    lost(ledger, 1)
    connected, roles = application.ledger, []

    def recorded(conn_id, role):
        roles.append(role)
        return connected(conn_id, role)

    roles_by_route = {}
    with monkeypatch.context() as patch:
        patch.setattr(application, "ledger", recorded)
        for route in ROUTES:
            roles.clear()
            ask(route)
            assert roles[:1] in ([], [READER]), route
            roles_by_route[route.split("?")[0].split("/0")[0]] = set(roles)
    assert roles_by_route == ROLES


def test_the_files_are_cached_by_version(ask):
    """A browser asks once; a new release has other addresses."""
    data = ask("static/0/pages.js")
    assert "immutable" in data.headers["cache-control"]
    assert data.headers["content-type"].startswith("text/javascript")
    assert all(page["bundle_url"].startswith("ledger/static/") for page in plugin.pages())


def test_the_pages_fetch_nothing_from_elsewhere():
    """No file of ours names another host, but for the namespace of SVG; licences are shipped."""
    folder = resources.files("ledger.airflow.pages") / "static"
    own = [file for file in folder.iterdir() if file.name.endswith((".js", ".svg"))]
    assert len(own) > 8
    for file in own:
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text, file.name
        assert "https:" not in text, file.name
    licences = (folder / "vendor" / "LICENSES.txt").read_text()
    for file in (folder / "vendor").iterdir():
        assert file.name == "LICENSES.txt" or f"{file.name}: " in licences


def test_the_pages_write_no_markup():
    """All that they show is text to React and to Plot: no file of ours has a way around that, and
    an address that is made of data is one of the page's own, or of Airflow's.
    """
    folder = resources.files("ledger.airflow.pages") / "static"
    ways = ("dangerouslySetInnerHTML", "innerHTML", "outerHTML", "insertAdjacentHTML",
            "document.write", "srcdoc", "eval(", "new Function", "javascript:", "<a href",
            "window.open")  # fmt: skip
    for file in folder.iterdir():
        if file.name.endswith(".js"):
            text = file.read_text()
            assert [way for way in ways if way in text] == [], file.name


def test_an_airflow_that_cannot_be_asked_for_rights_shows_nothing(monkeypatch):
    """What the pages need of Airflow is not declared as its interface; without it they refuse."""
    import sys

    for name in [module for module in sys.modules if module.startswith("ledger.airflow.pages.")]:
        if name.rsplit(".", 1)[1] in ("access", "application"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "airflow.api_fastapi.core_api.security", None)
    plugin.serving_application.cache_clear()
    try:
        answer = TestClient(plugin.Application()).get("/api/overview")
    finally:
        plugin.serving_application.cache_clear()
    assert answer.status_code == 503
    assert "cannot ask this Airflow who may see the ledger" in answer.json()["detail"]
