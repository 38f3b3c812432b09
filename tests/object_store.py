"""An S3 server for tests, moto's in a process of its own, and a proxy before it that fails as real stores do.

It is a part of `make setup`; DRIVETRAIN_MOTO names the program `moto_server` of another environment.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

KEY, SECRET = "AKIADRIVETRAINTEST", "a-secret-that-no-file-may-hold"
BUCKET = "bucket"
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


@dataclass(frozen=True)
class Fault:
    """What the proxy does in place of an answer."""

    kind: str
    """`slow down`, `denied`, `silent`, `cut` (after `at` bytes), `lost` (carried out, without an answer), `gone`,
    `answer` (status `at`, error `code`), `careless` (conditions are not kept), `short` (the first `at` bytes as if all)."""
    at: int = 0
    code: str = ""


@dataclass
class FaultyStore:
    """The proxy; `fault` decides by the number, method and path of a request."""

    endpoint: str = ""
    fault: Callable[[int, str, str], Fault | None] = lambda number, method, path: None
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of every request."""
    sent: int = 0
    """Bytes of all answers."""
    drops_connections: bool = False
    """Whether connections are dropped at once."""

    def variables(self) -> dict[str, str]:
        """The environment of a process that uses the store."""
        return {"AWS_ENDPOINT_URL": self.endpoint, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}


def find_moto() -> str:
    """The program of the server; skips the test if there is none."""
    installed_program = Path(sys.executable).with_name("moto_server")
    server_program = os.environ.get("DRIVETRAIN_MOTO") or (
        str(installed_program) if installed_program.exists() else shutil.which("moto_server")
    )
    if not server_program:
        pytest.skip("there is no moto_server: `make setup` installs it, or DRIVETRAIN_MOTO names one")
    return server_program


def empty_bucket(server: str) -> None:
    """Leave one bucket on the server, and nothing in it."""
    for method, path in (("POST", "moto-api/reset"), ("PUT", BUCKET)):
        request = urllib.request.Request(f"http://{server}/{path}", method=method)
        urllib.request.urlopen(request, timeout=5).close()


@contextmanager
def moto(host: str = "127.0.0.1") -> Iterator[str]:
    """The address of a server, with one bucket.

    Args:
        host: an address of this machine.
    """
    command = find_moto()
    with socket.socket() as free:
        free.bind((host, 0))
        port = free.getsockname()[1]
    # Without proxies and with an environment of its own: what tests set is for us.
    server = subprocess.Popen(
        [command, "-H", host, "-p", str(port)],
        env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError):
                empty_bucket(f"{host}:{port}")
                break
            assert server.poll() is None, "the server ended"
            assert time.monotonic() < end, "the server did not start"
            time.sleep(0.1)
        yield f"{host}:{port}"
    finally:
        server.kill()
        server.wait()


@contextmanager
def open_proxy(server: str) -> Iterator[FaultyStore]:
    """A proxy before a server."""
    state = FaultyStore()
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            state.requests.append((self.command, self.path))
            fault = (
                Fault("gone") if state.drops_connections else state.fault(len(state.requests), self.command, self.path)
            )
            if fault and fault.kind == "gone":
                self.close_connection = True
                return
            if fault and fault.kind == "silent":
                over.wait(60)
                self.close_connection = True
                return
            if fault and fault.kind == "answer":
                self.reply(fault.at, f"<Error><Code>{fault.code}</Code></Error>".encode(), {})
                return
            if fault and fault.kind in ("slow down", "denied"):
                self.reply(*((503, SLOW_DOWN) if fault.kind == "slow down" else (403, DENIED)), {})
                return
            careless = fault is not None and fault.kind == "careless"
            sent = {n: v for n, v in self.headers.items() if not (careless and n.lower().startswith("if-"))}
            with contextlib.closing(http.client.HTTPConnection(server, timeout=60)) as link:
                link.request(self.command, self.path, body, sent)
                answer = link.getresponse()
                content = answer.read()
            if fault and fault.kind == "lost":
                self.close_connection = True
                return
            headers = {
                n: v for n, v in answer.getheaders() if n.lower() not in ("connection", "content-length", "server")
            }
            length = answer.getheader("Content-Length") if self.command == "HEAD" else None
            if fault and fault.kind == "short":
                content = content[: fault.at]
            cut = fault.at if fault and fault.kind == "cut" else None
            self.reply(answer.status, content, headers, cut=cut, length=length)

        def reply(
            self,
            status: int,
            content: bytes,
            headers: dict[str, str],
            cut: int | None = None,
            length: str | None = None,
        ) -> None:
            self.send_response_only(status)
            for name, value in {**headers, "Content-Length": length or str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content[:cut])
                state.sent += len(content[:cut])
            if cut is not None:
                self.close_connection = True

        def handle_one_request(self) -> None:
            with contextlib.suppress(ConnectionError):  # a client that was killed
                super().handle_one_request()

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy.daemon_threads = True
    state.endpoint = f"http://127.0.0.1:{proxy.server_port}"
    threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield state
    finally:
        over.set()
        proxy.shutdown()
        proxy.server_close()
