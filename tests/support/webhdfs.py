"""A store behind HTTP that is no local path: WebHDFS over a folder, as strict as stores may be.

Hadoop's client and fsspec both speak it. It refuses to rename folders (but below ``movable``, where
it is like HDFS), renames no file over another, answers 503 now and then, and ends connections in
the middle of what it sends, and of what it is sent. It names no Content-Type: to understand one,
the Hadoop client of PySpark 4.2 (3.5.0) needs a class that its jars lack.
"""

import json
import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

PREFIX = "/webhdfs/v1"
DATA = "/data"  # of the place that requests for content are redirected to, as to a data node
HTTP_UNAVAILABLE = 503
_LINES = 1 << 16


@dataclass
class Store:
    """``root``: the folder behind it. ``movable``: names at the top whose folders may be renamed.
    ``closed``: those below which nothing may be written; ``lost``: those whose blocks the data
    nodes do not have.

    ``unavailable``, ``cut``, ``broken``: every how many requests one is answered 503, every how
    many bodies one is cut off half-way, every how many uploads one is; 0: none. ``down``: nothing
    is answered otherwise than 503. ``events``: how often each of it happened, and each operation.
    """

    root: Path
    movable: Sequence[str] = ()
    closed: Sequence[str] = ()
    lost: Sequence[str] = ()
    unavailable: int = 0
    cut: int = 0
    broken: int = 0
    down: bool = False
    events: Counter[str] = field(default_factory=Counter)
    address: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def url(self, path: str = "") -> str:
        """Of a path below the root."""
        return f"webhdfs://{self.address}{'/' if path else ''}{path}"

    def local(self, path: str) -> Path:
        """The file or folder behind a path of the store. ``:`` is none of a Hadoop path."""
        place = self.root / path.strip("/")
        if ".." in place.parts or ":" in path:
            raise _RefusalError(400, "IllegalArgumentException", f"Invalid path name {path}")
        return place

    def note(self, event: str) -> int:
        """Count an event; its number."""
        with self._lock:
            self.events[event] += 1
            return self.events[event]

    def is_due(self, event: str, every: int, fault: str) -> bool:
        """Count an event, and the fault if this is one that meets it."""
        number = self.note(event)
        if every and number % every == 0:
            self.note(fault)
            return True
        return False

    def top(self, place: Path) -> str:
        """The folder, or file, at the top that a place lies in."""
        return (*place.relative_to(self.root).parts, "")[0]

    def refuses_rename(self, source: Path) -> bool:
        """Whether a folder may not be renamed."""
        return source.is_dir() and self.top(source) not in self.movable


class _RefusalError(Exception):
    def __init__(self, status: int, name: str, message: str):
        self.status, self.name, self.message = status, name, message


def _gone(path: str) -> _RefusalError:
    return _RefusalError(404, "FileNotFoundException", f"File does not exist: {path}")


def _status(place: Path, suffix: str = "") -> dict[str, Any]:
    stat = place.stat()
    is_folder = place.is_dir()
    return {
        "accessTime": 0,
        "blockSize": 0 if is_folder else 1 << 27,
        "childrenNum": 0,
        "fileId": stat.st_ino,
        "group": "staff",
        "length": 0 if is_folder else stat.st_size,
        "modificationTime": int(stat.st_mtime * 1000),
        "owner": "tests",
        "pathSuffix": suffix,
        "permission": "755" if is_folder else "644",
        "replication": 0 if is_folder else 1,
        "storagePolicy": 0,
        "type": "DIRECTORY" if is_folder else "FILE",
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet
    disable_nagle_algorithm = True
    store: Store

    def handle(self) -> None:
        with suppress(ConnectionError):  # of a client that has ended it
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        split = urlsplit(self.path)
        query = dict(parse_qsl(split.query, keep_blank_values=True))
        query = {name.lower(): value for name, value in query.items()}
        store, operation = self.store, query.get("op", "").upper()
        try:
            is_refused = store.is_due("requests", store.unavailable, "unavailable")
            if store.down or is_refused:
                raise _RefusalError(HTTP_UNAVAILABLE, "IOException", "the store is busy")
            path = unquote(split.path)
            is_data = path.startswith(DATA)
            path = path.removeprefix(DATA).removeprefix(PREFIX) or "/"
            store.note(operation)
            if operation in ("OPEN", "CREATE", "APPEND") and not is_data:
                self._redirect(operation, path)
            elif operation in ("CREATE", "APPEND"):
                self._upload(store.local(path), operation)
            elif operation == "OPEN":
                self._send(200, self._content(path, query))
            else:
                self._json(
                    200, getattr(self, f"_{operation.lower()}", self._unsupported)(path, query)
                )
        except FileNotFoundError:  # of two requests for one path
            self._refuse(_gone(self.path))
        except _RefusalError as refusal:
            self._drain()
            self._refuse(refusal)

    def _refuse(self, refusal: _RefusalError) -> None:
        if refusal.status == HTTP_UNAVAILABLE:  # of a gateway, which does not speak the protocol
            self._send(refusal.status, refusal.message.encode())
            return
        error = {
            "exception": refusal.name,
            "message": refusal.message,
            "javaClassName": _java(refusal),
        }
        self._json(refusal.status, {"RemoteException": error})

    def _redirect(self, operation: str, path: str) -> None:
        place = self.store.local(path)
        if operation != "CREATE" and not place.is_file():
            raise _gone(path)
        if operation != "OPEN" and self.store.top(place) in self.store.closed:
            raise _RefusalError(403, "AccessControlException", f"Permission denied: {path}")
        if operation == "CREATE" and place.is_dir():
            raise _RefusalError(403, "FileAlreadyExistsException", f"{path} is a directory")
        self._drain()
        self.send_response(307)
        split = urlsplit(self.path)
        where = f"http://{self.store.address}{DATA}{PREFIX}{quote(path)}?{split.query}"
        self.send_header("Location", where)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _content(self, path: str, query: dict[str, str]) -> bytes:
        place = self.store.local(path)
        if not place.is_file():
            raise _gone(path)
        if self.store.top(place) in self.store.lost:
            raise _RefusalError(403, "IOException", "Could not obtain the last block")
        with place.open("rb") as stream:
            stream.seek(int(query.get("offset", 0)))
            return stream.read(int(query["length"]) if "length" in query else -1)

    def _upload(self, place: Path, operation: str) -> None:
        """Write what is sent; of a connection that breaks the part that has arrived is there."""
        store = self.store
        place.parent.mkdir(parents=True, exist_ok=True)
        data = b"".join(self._body())
        breaks = bool(data) and store.is_due("uploads", store.broken, "broken")
        with place.open("wb" if operation == "CREATE" else "ab") as stream:
            stream.write(data[: len(data) // 2] if breaks else data)
        if breaks:
            self.close_connection = True
            return
        self.send_response(201 if operation == "CREATE" else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _body(self) -> Iterator[bytes]:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline(_LINES).split(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline(_LINES)
            self.rfile.readline(_LINES)
        elif length := int(self.headers.get("Content-Length", 0)):
            yield self.rfile.read(length)

    def _drain(self) -> None:
        for _ in self._body():
            pass

    def _json(self, status: int, content: Any) -> None:
        body = b"" if content is None else json.dumps(content).encode()
        self._send(status, body)

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if status == 200 and len(body) > 1 and self.store.is_due("bodies", self.store.cut, "cut"):
            body = body[: len(body) // 2]
            self.close_connection = True
        self.wfile.write(body)

    def _unsupported(self, path: str, query: dict[str, str]) -> None:
        what = f"Invalid operation {query.get('op')}"
        raise _RefusalError(400, "UnsupportedOperationException", what)

    def _getfilestatus(self, path: str, query: dict[str, str]) -> Any:
        place = self.store.local(path)
        if not place.exists():
            raise _gone(path)
        return {"FileStatus": _status(place)}

    def _liststatus(self, path: str, query: dict[str, str]) -> Any:
        place = self.store.local(path)
        if not place.exists():
            raise _gone(path)
        if place.is_file():
            return {"FileStatuses": {"FileStatus": [_status(place)]}}
        entries = []
        for child in sorted(place.iterdir()):
            try:
                entries.append(_status(child, child.name))
            except FileNotFoundError:  # removed while it was listed
                continue
        return {"FileStatuses": {"FileStatus": entries}}

    def _liststatus_batch(self, path: str, query: dict[str, str]) -> Any:
        listing = self._liststatus(path, query)
        return {"DirectoryListing": {"partialListing": listing, "remainingEntries": 0}}

    def _getcontentsummary(self, path: str, query: dict[str, str]) -> Any:
        files = [file for file in self.store.local(path).rglob("*") if file.is_file()]
        length = sum(file.stat().st_size for file in files)
        return {
            "ContentSummary": {
                "directoryCount": 1,
                "fileCount": len(files),
                "length": length,
                "quota": -1,
                "spaceConsumed": length,
                "spaceQuota": -1,
            }
        }

    def _gethomedirectory(self, path: str, query: dict[str, str]) -> Any:
        return {"Path": "/user/tests"}

    def _getfileblocklocations(self, path: str, query: dict[str, str]) -> Any:
        return {"BlockLocations": {"BlockLocation": []}}

    def _mkdirs(self, path: str, query: dict[str, str]) -> Any:
        place = self.store.local(path)
        if any(part.is_file() for part in (place, *place.parents)):
            raise _RefusalError(403, "FileAlreadyExistsException", f"{path} is a file")
        place.mkdir(parents=True, exist_ok=True)
        return {"boolean": True}

    def _rename(self, path: str, query: dict[str, str]) -> Any:
        """As HDFS says no: false, and no error."""
        source, target = self.store.local(path), self.store.local(query["destination"])
        if not source.exists() or not target.parent.is_dir():
            return {"boolean": False}
        if self.store.refuses_rename(source):
            self.store.note("folder renames refused")
            return {"boolean": False}
        if target.is_dir():
            target = target / source.name
        if target.exists():
            return {"boolean": False}
        os.rename(source, target)
        return {"boolean": True}

    def _delete(self, path: str, query: dict[str, str]) -> Any:
        place = self.store.local(path)
        if not place.exists():
            return {"boolean": False}
        if place.is_file():
            place.unlink()
        elif query.get("recursive") == "true":
            shutil.rmtree(place)
        elif any(place.iterdir()):
            name = "PathIsNotEmptyDirectoryException"
            raise _RefusalError(403, name, f"{path} is non empty")
        else:
            place.rmdir()
        return {"boolean": True}

    def _nothing(self, path: str, query: dict[str, str]) -> None:
        self.store.local(path)

    _setpermission = _setowner = _settimes = _setreplication = _checkaccess = _nothing


for _method in ("PUT", "POST", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler.do_GET)


def _java(refusal: _RefusalError) -> str:
    packages = {
        "FileNotFoundException": "java.io",
        "IOException": "java.io",
        "IllegalArgumentException": "java.lang",
        "UnsupportedOperationException": "java.lang",
    }
    return f"{packages.get(refusal.name, 'org.apache.hadoop.fs')}.{refusal.name}"


@contextmanager
def serving(store: Store) -> Iterator[Store]:
    """The store, while it answers."""
    handler = type("Handler", (_Handler,), {"store": store})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        store.address = f"127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield store
        finally:
            server.shutdown()
            thread.join()
