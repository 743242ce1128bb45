"""The application: JSON for the pages, and their files. Every route needs a signed-in user."""

from functools import cache
from importlib import resources
from pathlib import PurePosixPath
from typing import Any

from airflow.api_fastapi.core_api.security import requires_authenticated
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse

from ledger.airflow.pages import batches, overview, records
from ledger.airflow.pages.access import SignedIn
from ledger.core.run_request import Selection
from ledger.errors import InputError, LedgerError, NotReadyError
from ledger.settings import Settings
from ledger.store.connection import PAYLOAD_READER, READER, Database

_TYPES = {".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}
_YEAR = "private, max-age=31536000, immutable"
router = APIRouter()


def application() -> FastAPI:
    """The application, without pages about itself, which no dependency would protect."""
    made = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(requires_authenticated())],
    )
    made.include_router(router)
    made.add_exception_handler(LedgerError, _explained)
    return made


@cache
def ledger(role: str) -> Database:
    """The ledger as a role that only reads."""
    database = Database.from_settings(Settings(), role=role)
    database.check()
    return database


def _explained(request: Request, exc: Exception) -> Response:
    status = 404 if isinstance(exc, InputError | NotReadyError) else 503
    return JSONResponse({"detail": str(exc)}, status_code=status)


@router.get("/api/overview")
def get_overview(access: SignedIn) -> dict[str, Any]:
    """All pipelines that the user may see: how they are, what is under way, what waits."""
    database = ledger(READER)
    return overview.overview(database, access.readable(overview.names(database)))


@router.get("/api/pipeline")
def get_pipeline(access: SignedIn, name: str) -> dict[str, Any]:
    """One pipeline: its latest intervals and batches."""
    access.require(name)
    return overview.pipeline(ledger(READER), name)


@router.get("/api/run")
def get_run(access: SignedIn, dag_id: str, run_id: str) -> dict[str, Any]:
    """The batches that a run of a DAG has opened."""
    access.require(dag_id)
    return overview.of_run(ledger(READER), dag_id, run_id)


@router.get("/api/batch")
def get_batch(access: SignedIn, number: int) -> dict[str, Any]:
    """One batch: where its rows went, what is lost, what is published, what can be done."""
    pipeline = batches.pipeline_of(ledger(READER), number)
    access.require(pipeline)
    # What to do depends on whether the keys of failed records could be read; none is returned.
    found = batches.batch(ledger(PAYLOAD_READER), number)
    return {**found, "may_run": access.may_run(pipeline)}


@router.get("/api/failed")
def get_failed(
    access: SignedIn,
    batch: int,
    step: str | None = None,
    reason: str | None = None,
    status: str | None = None,
    search: str | None = None,
    after: int = 0,
) -> dict[str, Any]:
    """A page of the records that failed in a batch."""
    access.require_records(batches.pipeline_of(ledger(READER), batch))
    chosen = {"step": step, "reason": reason, "status": status, "search": search, "after": after}
    return batches.failed(ledger(PAYLOAD_READER), batch, chosen)


@router.get("/api/replay")
def get_replay(
    access: SignedIn,
    batch: int,
    step: str | None = None,
    reason: str | None = None,
    root: int | None = None,
    quarantined: bool = False,
    held: bool = False,
) -> dict[str, Any]:
    """What a replay of these records of a batch would run, and how to ask Airflow for it."""
    access.require(batches.pipeline_of(ledger(READER), batch))
    chosen = Selection(reason, step, root, quarantined=quarantined, held=held)
    return batches.replay(ledger(READER), batch, chosen)


@router.get("/api/record")
def get_record(access: SignedIn, number: int) -> dict[str, Any]:
    """One record: what it holds, what became of it, what to do."""
    database = ledger(PAYLOAD_READER)
    found = records.record(database, number)
    access.require_records(found["pipeline"])
    return {**found, "may_run": access.may_run(found["pipeline"])}


@router.get("/api/tree")
def get_tree(access: SignedIn, number: int, attempt: int | None = None) -> dict[str, Any]:
    """The rows that came of a record, from the files of its batch."""
    database = ledger(PAYLOAD_READER)
    access.require_records(records.pipeline_of(database, number))
    return records.tree(database, number, attempt)


@router.get("/static/{version}/{name:path}")
def get_static(version: str, name: str) -> Response:
    """A file of the pages; ``version`` is for the browser's cache alone."""
    path = PurePosixPath(name)
    place = resources.files("ledger.airflow.pages") / "static"
    for part in path.parts:
        place = place / part
    if ".." in path.parts or path.suffix not in _TYPES or not place.is_file():
        raise HTTPException(404, f"the pages have no file {name!r}")
    return Response(
        place.read_bytes(), media_type=_TYPES[path.suffix], headers={"Cache-Control": _YEAR}
    )
