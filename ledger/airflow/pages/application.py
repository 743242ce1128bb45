"""The application: JSON for the pages, and their files. Every route needs a signed-in user."""

from dataclasses import asdict
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import requires_authenticated
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse

from ledger.airflow.hooks import overrides_of, unknown_connection
from ledger.airflow.links import REPLAY_DAG, SWEEPER_DAG, dag_of
from ledger.airflow.pages.access import SignedIn
from ledger.airflow.provider import CONN_TYPE
from ledger.airflow.versions import AirflowNotFoundException, configuration
from ledger.batch.pages import batches, overview
from ledger.batch.records.explain import explained
from ledger.batch.records.trace import trace
from ledger.core.commands import ACCEPT_DAG
from ledger.core.run_request import Selection
from ledger.errors import InputError, LedgerError, NotReadyError
from ledger.settings import Settings
from ledger.store.connection import PAYLOAD_READER, READER, Database

_GREATEST = 2**63 - 1
Number = Annotated[int, Query(ge=1, le=_GREATEST)]
Text = Annotated[str | None, Query(max_length=1000, pattern=r"^[^\x00]*$")]
_TYPES = {".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}
_YEAR = "private, max-age=31536000, immutable"
router = APIRouter()


def application() -> FastAPI:
    """Return the application. Each route requires a login. FastAPI's pages about itself are off,
    because that login would not protect them.
    """
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(requires_authenticated())],
    )
    app.include_router(router)
    app.add_exception_handler(LedgerError, _explained)
    return app


def shown_ledgers() -> list[str | None]:
    """Return the connections of the ledgers that the pages show; None: the one of the environment.
    Another connection cannot be asked for, because a request may name any.
    """
    names = configuration().get(CONN_TYPE, "conn_ids", fallback="").split(",")
    return [name.strip() for name in names if name.strip()] or [None]


def chosen_ledger(conn_id: Text = None) -> str | None:
    """Return the connection of the ledger that a request names, or the first that is shown."""
    offered = shown_ledgers()
    if conn_id is None:
        return offered[0]
    if conn_id not in offered:
        raise HTTPException(
            404,
            f"the pages show no ledger of connection {conn_id!r}: add it to conn_ids in section"
            f" [{CONN_TYPE}] of Airflow's configuration",
        )
    return conn_id


AskedLedger = Annotated[str | None, Depends(chosen_ledger)]


@cache
def connected(conn_id: str | None) -> Database:
    """Return a ledger, whose connections all requests of a process share."""
    settings = Settings(**({} if conn_id is None else _overrides(conn_id)))
    database = Database.from_settings(settings, role=READER)
    database.check()
    return database


def _overrides(conn_id: str) -> dict[str, Any]:
    """Return the settings that a connection has, as Airflow's server finds connections."""
    from airflow.models.connection import Connection

    try:
        overrides = overrides_of(Connection.get_connection_from_secrets(conn_id))
    except AirflowNotFoundException:
        raise unknown_connection(conn_id) from None
    return {**overrides, "reader_url": None}  # that of the environment is of another ledger


def ledger(conn_id: str | None, role: str) -> Database:
    """Return a ledger as a role that only reads."""
    return connected(conn_id).acting_as(role)


def ledger_of(
    dag_id: str, at: str | None, asked: str | None, run_id: str | None = None
) -> str | None:
    """Return the ledger of a DAG: the one that was asked for, the one whose form the DAG is, the
    first that knows it as a pipeline, or else the one at hand. ``run_id``: a run of the DAG, whose
    ledger goes before others that know a pipeline of that name.
    """
    offered = shown_ledgers()
    if asked is not None or len(offered) == 1:
        return at
    forms = [conn_id for conn_id in offered if _owns(conn_id, dag_id)]
    if forms:
        return forms[0]
    candidates: list[str | None] = []
    for conn_id in offered:
        if _knows(conn_id, dag_id):
            if run_id is None or overview.of_run(ledger(conn_id, READER), dag_id, run_id):
                return conn_id
            candidates.append(conn_id)
    return candidates[0] if candidates else at


def _owns(conn_id: str | None, dag_id: str) -> bool:
    """Return whether a DAG is the sweeper or a form of a ledger."""
    return dag_id in {dag_of(name, conn_id) for name in (ACCEPT_DAG, REPLAY_DAG, SWEEPER_DAG)}


def _knows(conn_id: str | None, pipeline: str) -> bool:
    """Return whether a ledger knows a pipeline; one that does not answer knows none."""
    try:
        return pipeline in overview.pipelines(ledger(conn_id, READER))
    except LedgerError:
        return False


def _explained(request: Request, exc: Exception) -> Response:
    status = 404 if isinstance(exc, InputError | NotReadyError) else 503
    return JSONResponse({"detail": str(exc)}, status_code=status)


@router.get("/api/overview")
def get_overview(access: SignedIn, at: AskedLedger) -> dict[str, Any]:
    """Return the pipelines that the user may see: their state, running batches and pending work."""
    database = ledger(at, READER)
    page = overview.overview(database, access.readable(overview.pipelines(database)))
    return {**asdict(page), "conn_id": at, "conn_ids": shown_ledgers()}


@router.get("/api/pipeline")
def get_pipeline(
    access: SignedIn,
    at: AskedLedger,
    name: Annotated[str, Query(min_length=1)],
    conn_id: Text = None,
) -> dict[str, Any]:
    """Return one pipeline: its latest intervals and batches, and its ledger's connection."""
    access.require(name)
    own = ledger_of(name, at, conn_id)
    return {**asdict(overview.pipeline(ledger(own, READER), name)), "conn_id": own}


@router.get("/api/run")
def get_run(
    access: SignedIn,
    at: AskedLedger,
    dag_id: Annotated[str, Query(min_length=1)],
    run_id: str,
    conn_id: Text = None,
) -> dict[str, Any]:
    """Return the batches that a run of a DAG has opened, and their ledger's connection.

    ``knows_dag``: whether that is the ledger of a batch that the run's conf may name.
    """
    access.require(dag_id)
    own = ledger_of(dag_id, at, conn_id, run_id)
    opened = overview.of_run(ledger(own, READER), dag_id, run_id)
    readable = access.readable([batch.pipeline for batch in opened])
    batches_ = [asdict(batch) for batch in opened if batch.pipeline in readable]
    knows_dag = _owns(own, dag_id) or _knows(own, dag_id)
    return {"batches": batches_, "conn_id": own, "knows_dag": knows_dag}


@router.get("/api/batch")
def get_batch(access: SignedIn, at: AskedLedger, number: Number) -> dict[str, Any]:
    """Return one batch: its rows, its lost records, its publications, and what to do.

    ``forms``: the DAG of each action. ``may``: the actions whose DAG the user may run.
    """
    original = batches.original_of(ledger(at, READER), number)
    access.require(original.pipeline)
    # What to do depends on whether the keys of failed records could be read; none is returned.
    accept_dag = dag_of(ACCEPT_DAG, at)
    page = asdict(batches.batch(ledger(at, PAYLOAD_READER), number, accept_dag))
    forms = {
        "replay": original.replay_dag,
        "accept": accept_dag,
        "release": dag_of(REPLAY_DAG, at),
    }
    may = [what for what, dag_id in forms.items() if access.may_run(dag_id)]
    return {**page, "forms": forms, "may": may}


@router.get("/api/failed")
def get_failed(
    access: SignedIn,
    at: AskedLedger,
    batch: Number,
    step: Text = None,
    reason: Text = None,
    status: Text = None,
    search: Text = None,
    after: Annotated[int, Query(ge=0, le=_GREATEST)] = 0,
) -> dict[str, Any]:
    """Return a page of the failed records of a batch that match the filters; for a batch on hold
    for failures, of the sampled records that would fail.

    ``after``: the number of the last record of the previous page.
    """
    access.require_records(batches.original_of(ledger(at, READER), batch).pipeline)
    filters = {"step": step, "reason": reason, "status": status, "search": search, "after": after}
    return asdict(batches.failed(ledger(at, PAYLOAD_READER), batch, filters))


@router.get("/api/replay")
def get_replay(
    access: SignedIn,
    at: AskedLedger,
    batch: Number,
    step: Text = None,
    reason: Text = None,
    record: Annotated[int | None, Query(ge=1, le=_GREATEST)] = None,
    quarantined: bool = False,
    accepted: bool = False,
) -> dict[str, Any]:
    """Return the plan of a replay of these records of a batch: what it would run, and how to ask
    Airflow for it.
    """
    access.require(batches.original_of(ledger(at, READER), batch).pipeline)
    selection = Selection(reason, step, record, quarantined=quarantined, accepted=accepted)
    # As a role that knows which contents are forgotten: those are not replayed.
    page = asdict(batches.replay(ledger(at, PAYLOAD_READER), batch, selection))
    return {**page, "conf": {**page["conf"], "conn_id": at}}


@router.get("/api/record")
def get_record(access: SignedIn, at: AskedLedger, number: Number) -> dict[str, Any]:
    """Return one record: its content, its attempts, and what to do."""
    access.require_records(batches.pipeline_of_record(ledger(at, READER), number))
    # From the ledger only, because storage and sources may be out of reach here.
    record = explained(ledger(at, PAYLOAD_READER), number, dag_of(ACCEPT_DAG, at))
    original = batches.original_of(ledger(at, READER), record.batch_id)
    return {**asdict(record), "may": ["replay"] if access.may_run(original.replay_dag) else []}


@router.get("/api/tree")
def get_tree(
    access: SignedIn,
    at: AskedLedger,
    number: Number,
    attempt: Annotated[int | None, Query(ge=1, le=_GREATEST)] = None,
) -> dict[str, Any]:
    """Return the rows derived from a record, from the files of its batch."""
    access.require_records(batches.pipeline_of_record(ledger(at, READER), number))
    return asdict(trace(ledger(at, PAYLOAD_READER), number, attempt))


@router.get("/static/{version}/{name:path}")
def get_static(version: str, name: str) -> Response:
    """Return a file of the pages. ``version`` serves only the browser's cache."""
    file = _files().get(name)
    if file is None:
        raise HTTPException(404, "the pages have no such file")
    kind = _TYPES[PurePosixPath(name).suffix]
    return Response(file.read_bytes(), media_type=kind, headers={"Cache-Control": _YEAR})


@cache
def _files() -> dict[str, Traversable]:
    """Return the files of the pages by name; no other file is served."""
    folder = resources.files("ledger.airflow.pages") / "static"
    own = {file.name: file for file in folder.iterdir() if file.is_file()}
    vendor = {f"vendor/{file.name}": file for file in (folder / "vendor").iterdir()}
    return {**own, **vendor}
