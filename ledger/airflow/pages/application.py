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

from ledger.airflow.links import ACCEPT_DAG, REPLAY_DAG
from ledger.airflow.pages.access import SignedIn
from ledger.batch.pages import batches, overview
from ledger.batch.records.explain import explained
from ledger.batch.records.trace import trace
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


@cache
def connected() -> Database:
    """Return the ledger, whose connections all requests of a process share."""
    database = Database.from_settings(Settings(), role=READER)
    database.check()
    return database


def ledger(role: str) -> Database:
    """Return the ledger as a role that only reads."""
    return connected().acting_as(role)


def _explained(request: Request, exc: Exception) -> Response:
    status = 404 if isinstance(exc, InputError | NotReadyError) else 503
    return JSONResponse({"detail": str(exc)}, status_code=status)


@router.get("/api/overview")
def get_overview(access: SignedIn) -> dict[str, Any]:
    """Return the pipelines that the user may see: their state, running batches and pending work."""
    database = ledger(READER)
    return asdict(overview.overview(database, access.readable(overview.pipelines(database))))


@router.get("/api/pipeline")
def get_pipeline(access: SignedIn, name: Annotated[str, Query(min_length=1)]) -> dict[str, Any]:
    """Return one pipeline: its latest intervals and batches."""
    access.require(name)
    return asdict(overview.pipeline(ledger(READER), name))


@router.get("/api/run")
def get_run(
    access: SignedIn, dag_id: Annotated[str, Query(min_length=1)], run_id: str
) -> dict[str, Any]:
    """Return the batches that a run of a DAG has opened."""
    access.require(dag_id)
    opened = overview.of_run(ledger(READER), dag_id, run_id)
    readable = access.readable([batch.pipeline for batch in opened])
    return {"batches": [asdict(batch) for batch in opened if batch.pipeline in readable]}


@router.get("/api/batch")
def get_batch(access: SignedIn, number: Number) -> dict[str, Any]:
    """Return one batch: its rows, its lost records, its publications, and what to do. ``may``: the
    actions whose DAG the user may run.
    """
    original = batches.original_of(ledger(READER), number)
    access.require(original.pipeline)
    # What to do depends on whether the keys of failed records could be read; none is returned.
    page = asdict(batches.batch(ledger(PAYLOAD_READER), number))
    may = {"replay": original.replay_dag, "accept": ACCEPT_DAG, "release": REPLAY_DAG}
    return {**page, "may": [what for what, dag_id in may.items() if access.may_run(dag_id)]}


@router.get("/api/failed")
def get_failed(
    access: SignedIn,
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
    access.require_records(batches.original_of(ledger(READER), batch).pipeline)
    filters = {"step": step, "reason": reason, "status": status, "search": search, "after": after}
    return asdict(batches.failed(ledger(PAYLOAD_READER), batch, filters))


@router.get("/api/replay")
def get_replay(
    access: SignedIn,
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
    access.require(batches.original_of(ledger(READER), batch).pipeline)
    selection = Selection(reason, step, record, quarantined=quarantined, accepted=accepted)
    # As a role that knows which contents are forgotten: those are not replayed.
    return asdict(batches.replay(ledger(PAYLOAD_READER), batch, selection))


@router.get("/api/record")
def get_record(access: SignedIn, number: Number) -> dict[str, Any]:
    """Return one record: its content, its attempts, and what to do."""
    access.require_records(batches.pipeline_of_record(ledger(READER), number))
    # From the ledger only, because storage and sources may be out of reach here.
    record = explained(ledger(PAYLOAD_READER), number)
    original = batches.original_of(ledger(READER), record.batch_id)
    return {**asdict(record), "may": ["replay"] if access.may_run(original.replay_dag) else []}


@router.get("/api/tree")
def get_tree(
    access: SignedIn,
    number: Number,
    attempt: Annotated[int | None, Query(ge=1, le=_GREATEST)] = None,
) -> dict[str, Any]:
    """Return the rows derived from a record, from the files of its batch."""
    access.require_records(batches.pipeline_of_record(ledger(READER), number))
    return asdict(trace(ledger(PAYLOAD_READER), number, attempt))


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
