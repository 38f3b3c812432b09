"""Google's store knows generations where others know ETags: conditional writes against a server that keeps them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from drivetrain.storage.object_store import ObjectStore, Patience
from drivetrain.storage.remote_address import parse


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    objects: dict[str, tuple[int, bytes]] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            generation = objects.get(self.path, (0, b""))[0]
            if self.headers.get("x-goog-if-generation-match", str(generation)) != str(generation):
                self.answer(412, generation, b"")
                return
            objects[self.path] = generation + 1, content
            self.answer(200, generation + 1, b"")

        def do_GET(self) -> None:
            if "list-type=2" in self.path:
                self.answer(200, 0, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")
                return
            generation, content = objects.get(self.path, (0, b""))
            self.answer(200 if generation else 404, generation, content)

        do_HEAD = do_GET

        def do_DELETE(self) -> None:
            self.answer(204 if objects.pop(self.path, None) else 404, 0, b"")

        def answer(self, status: int, generation: int, content: bytes) -> None:
            self.send_response_only(status)
            headers = {
                "ETag": '"always-the-same"',
                "x-goog-generation": str(generation),
                "Last-Modified": "Mon, 02 Nov 2026 10:00:00 GMT",
                "Content-Length": str(len(content)),
            }
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        key = {
            "gcs_base_url": endpoint,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(key))
        monkeypatch.setenv("GOOGLE_BASE_URL", endpoint)
        yield ObjectStore(parse("gs://bucket/runs"), Patience(retries=2.0, silence=2.0, connect=2.0))
        server.shutdown()


def test_an_object_is_created_once(store: ObjectStore) -> None:
    assert store.create("x", b"1")
    assert not store.create("x", b"2")
    assert store.get("x") == b"1"
