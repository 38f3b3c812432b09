"""A proxy that opens TLS with certificates of a private authority, as those of companies do; behind it a Hugging Face hub.

The hub holds one private model: without the token it answers 401, without the proxy's password the proxy answers 407.
"""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

HOST = "hub.drivetrain.test"
"""Nobody resolves it: whoever does not go through the proxy gets nothing."""
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What was asked for, and how to get there."""

    port: int
    authority: Path
    requests: list[str] = field(default_factory=list)

    endpoint: str = f"https://{HOST}"


def certificates(folder: Path) -> tuple[Path, Path]:
    """An authority, and a file with key and certificate of the hub that it signed."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, key, request, signed = (folder / name for name in ("ca.pem", "ca.key", "hub.csr", "hub.pem"))
    (folder / "extensions").write_text(f"subjectAltName=DNS:{HOST}\n")
    new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-batch"]
    lines = [
        [*new, "-x509", "-days", "30", "-subj", "/CN=Private authority", "-keyout", str(key), "-out", str(authority)],
        [*new, "-subj", f"/CN={HOST}", "-keyout", str(folder / "hub.key"), "-out", str(request)],
        [
            "openssl",
            "x509",
            "-req",
            "-days",
            "30",
            "-in",
            str(request),
            "-CA",
            str(authority),
            "-CAkey",
            str(key),
            "-CAcreateserial",
            "-extfile",
            str(folder / "extensions"),
            "-out",
            str(signed),
        ],
    ]
    for line in lines:
        subprocess.run(line, capture_output=True, check=True)
    signed.write_bytes(signed.read_bytes() + (folder / "hub.key").read_bytes())
    return authority, signed


def entry_of(name: str, content: bytes) -> dict[str, object]:
    """A file as the hub lists it: large ones by SHA-256, small ones as git names them."""
    git = hashlib.sha1(f"blob {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()
    entry: dict[str, object] = {"type": "file", "path": name, "size": len(content), "oid": git}
    if name.endswith((".safetensors", ".bin", ".parquet", ".png")):
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return entry


@contextmanager
def run_proxy(folder: Path, name: str, model: Path, token: str, password: str) -> Iterator[Hub]:
    """Proxy and hub.

    Args:
        folder: for the certificates.
        name: of the model on the hub.
        model: its files.
        token: what the hub wants.
        password: what the proxy wants of the user `someone`.
    """
    authority, signed = certificates(folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(signed)
    hub = Hub(0, authority)
    entry = "Basic " + base64.b64encode(f"someone:{password}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_CONNECT(self) -> None:
            hub.requests.append(f"CONNECT {self.path}")
            if self.headers["Proxy-Authorization"] != entry:
                self._answer(407, b"")
                return
            self.send_response(200)
            self.end_headers()
            self.connection = context.wrap_socket(self.connection, server_side=True)
            self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb")
            self.close_connection = False

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(f"{self.command} {path}")
            if self.headers["Authorization"] != f"Bearer {token}":
                self._answer(401, b"")
            elif path.startswith(f"/api/models/{name}/tree/"):
                self._answer(
                    200,
                    json.dumps([entry_of(file.name, file.read_bytes()) for file in sorted(model.iterdir())]).encode(),
                )
            elif path.startswith(f"/api/models/{name}"):
                files = [{"rfilename": file.name} for file in sorted(model.iterdir())]
                self._answer(200, json.dumps({"id": name, "sha": COMMIT, "siblings": files}).encode())
            elif path.startswith(f"/{name}/resolve/{COMMIT}/") and (file := model / Path(path).name).is_file():
                self._answer(200, file.read_bytes())
            else:
                self._answer(404, b"")

        do_HEAD = do_GET

        def _answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def finish(self) -> None:
            super().finish()
            self.connection.close()

        def log_message(self, format: str, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("0.0.0.0", 0), Handler)
    server.daemon_threads = True
    hub.port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
