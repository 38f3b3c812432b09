"""The double of an engine that is restarted while a container trains: it answers at a socket, as far as `follow` asks."""

from __future__ import annotations

import gc
import http.server
import json
import socketserver
import struct
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker

NAME = "drivetrain-digits-trainer-1"


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class RestartedEngine:
    """Engine and container.

    Args:
        log: what the container prints; the engine ends in the middle of it.
        code: the exit code of the container.
        attached: whether the container has a terminal.
        returns: whether the engine answers again.
    """

    def __init__(self, socket: Path, log: Sequence[bytes], code: int, *, attached: bool, returns: bool) -> None:
        self.socket, self.log, self.code, self.attached, self.returns = socket, log, code, attached, returns
        self.is_restarted = False
        self.was_inspected = threading.Event()
        self.server: _Server | None = None

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        engine = self

        class Answer(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def address_string(self) -> str:
                return ""

            def log_message(self, *_: object) -> None:
                pass

            def send_json(self, value: Any) -> None:
                body = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Connection", "close")  # no connection is left to an engine that has ended
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.send_json({"StatusCode": engine.code})

            def do_GET(self) -> None:
                if "/logs" in self.path:
                    self.send_log()
                else:
                    engine.was_inspected.set()
                    state = {"OOMKilled": False}
                    tty, limit = {"Tty": engine.attached}, {"Memory": 1 << 30}
                    self.send_json(
                        {"Id": "1" * 64, "Name": f"/{NAME}", "State": state, "Config": tty, "HostConfig": limit}
                    )

            def send_log(self) -> None:
                engine.was_inspected.clear()
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                half = len(engine.log) // 2
                # A log since a time begins there, that of a container without a terminal at its start.
                later = engine.log[half:] if engine.attached else engine.log
                for piece in later if engine.is_restarted else engine.log[:half]:
                    frame = piece if engine.attached else struct.pack(">BxxxL", 1, len(piece)) + piece
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(frame), frame))
                if engine.is_restarted:
                    self.wfile.write(b"0\r\n\r\n")
                else:
                    # The client asks for the container's kind before it reads the log.
                    assert engine.attached or engine.was_inspected.wait(30)
                    engine.restart()
                self.close_connection = True

        self.server = _Server(str(self.socket), Answer)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def end(self) -> None:
        assert self.server
        self.server.shutdown()
        self.server.server_close()
        self.socket.unlink(missing_ok=True)

    def restart(self) -> None:
        self.end()
        self.is_restarted = True
        if self.returns:
            threading.Timer(0.1, self.start).start()


@contextmanager
def run_container(engine: RestartedEngine) -> Iterator[Any]:
    """Yield the container, as the engine's client gives it."""
    engine.start()
    client = docker.DockerClient(base_url=f"unix://{engine.socket}", version="1.41")
    client.api.timeout = None
    # The client leaves sockets of lost connections open.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            yield client.containers.get(NAME)
        finally:
            client.close()
            if engine.returns:
                engine.end()
            del client
            gc.collect()
