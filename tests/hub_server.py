"""A Hugging Face hub on 127.0.0.1, with the faults that real ones have; a real server, which real requests reach."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from tests.hub_double import COMMIT, entry_of

NAME = "casa/beto"


@dataclass
class Fault:
    """What happens instead of an answer, to as many requests as `times` says."""

    path: str = ""
    """Part of the path; all requests if empty."""
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    """The body ends after so many bytes."""
    spoil: bool = False
    """The body has other bytes."""
    pause: float = 0.0
    """Seconds before each piece of the body."""
    times: int = 10**9


@dataclass
class Hub:
    """The content of the hub, and what was asked of it."""

    files: dict[str, bytes]
    name: str = NAME
    revisions: dict[str, str] = field(default_factory=lambda: {"main": COMMIT})
    token: str = ""
    """What a request needs to see anything; empty: nothing."""
    ignores_range: bool = False
    """Whether Range is ignored, as some proxies do."""
    file_address: str = ""
    """Address that files are redirected to."""
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Path and headers of every request."""
    sent: int = 0
    """Bytes of files."""
    endpoint: str = ""
    kind: str = "models"
    """`models` or `datasets`."""
    page: int = 1000
    """Files in a page of the list."""
    earlier: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Files by commit, of commits with other content."""

    def paths(self, part: str = "") -> list[str]:
        """The paths that were asked for, of those that contain the part."""
        return [path for path, _ in self.requests if part in path]


def files_of(folder: Path) -> dict[str, bytes]:
    """The files of a folder, as the hub has them."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


@contextmanager
def serve_hub(hub: Hub) -> Iterator[Hub]:
    """The hub, for the time of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append((path, dict(self.headers.items())))
            fault = next((candidate for candidate in hub.faults if candidate.path in path and candidate.times), Fault())
            fault.times -= 1
            resolve = f"/{'datasets/' * (hub.kind == 'datasets')}{hub.name}/resolve/"
            if fault.status:
                self._answer(fault.status, b"", fault)
            elif hub.token and self.headers["Authorization"] != f"Bearer {hub.token}":
                self._answer(401, b"", Fault(headers={"X-Error-Code": "RepoNotFound"}))
            elif path.startswith(f"/api/{hub.kind}/{hub.name}/tree/"):
                self._tree(fault)
            elif path.startswith(f"/api/{hub.kind}/{hub.name}/revision/"):
                self._revision(path.partition("/revision/")[2], fault)
            elif path.startswith(resolve) and (content := self._content(path.removeprefix(resolve))) is not None:
                self._file(path, content, fault)
            else:
                self._answer(404, b"", Fault(headers={"X-Error-Code": "RepoNotFound"}))

        def _tree(self, fault: Fault) -> None:
            """The files at the top, or all of them; in pages, as the hub gives them."""
            query = parse_qs(urlsplit(self.path).query)
            commit = urlsplit(self.path).path.rpartition("/")[2]
            files = hub.earlier.get(commit, hub.files)
            names = [name for name in files if "/" not in name or query.get("recursive") == ["true"]]
            start = int(query.get("cursor", ["0"])[0])
            rows = [entry_of(name, files[name]) for name in names[start : start + hub.page]]
            link_header = {}
            if start + hub.page < len(names):
                next_address = f"{hub.endpoint}{urlsplit(self.path).path}?recursive=true&cursor={start + hub.page}"
                link_header = {"Link": f'<{next_address}>; rel="next"'}
            self._answer(200, json.dumps(rows).encode(), fault, link_header)

        def _content(self, path: str) -> bytes | None:
            """A file at a commit; those of `earlier` are the content of commits that are not the newest."""
            commit, _, name = path.partition("/")
            return hub.earlier.get(commit, hub.files).get(name)

        def _revision(self, revision: str, fault: Fault) -> None:
            commit = hub.revisions.get(revision, revision if revision in hub.revisions.values() else "")
            if commit:
                self._answer(200, json.dumps({"id": hub.name, "sha": commit}).encode(), fault)
            else:
                self._answer(404, b"", Fault(headers={"X-Error-Code": "RevisionNotFound"}))

        def _file(self, path: str, content: bytes, fault: Fault) -> None:
            if hub.file_address:
                self._answer(302, b"", Fault(headers={"Location": f"{hub.file_address}{path}?signature=s"}))
                return
            byte_range = "" if hub.ignores_range else self.headers.get("Range", "")
            first, _, end = (byte_range or "bytes=0-")[6:].partition("-")
            start, stop = int(first), int(end) + 1 if end else len(content)
            if start and start >= len(content):
                self._answer(416, b"", fault)
                return
            part = content[start:stop]
            range_header = (
                {"Content-Range": f"bytes {start}-{start + len(part) - 1}/{len(content)}"} if byte_range else {}
            )
            hub.sent += len(part)
            self._answer(206 if byte_range else 200, part, fault, range_header)

        def _answer(
            self, status: int, content: bytes, fault: Fault, extra_headers: Mapping[str, str] | None = None
        ) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **fault.headers, **(extra_headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            body = bytes(reversed(content)) if fault.spoil else content
            body = body if fault.cut is None else body[: fault.cut]
            step = max(1, len(body) // 10) if fault.pause else max(1, len(body))
            for start in range(0, len(body), step):
                time.sleep(fault.pause)
                with suppress(OSError):  # whoever asked has gone
                    self.wfile.write(body[start : start + step])
            if len(body) < len(content):
                self.close_connection = True

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
