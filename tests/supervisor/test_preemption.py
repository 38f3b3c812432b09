"""A notice from outside: what counts as one, what does not, and that the run stops for it and goes on later."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from drivetrain.job.job import Checkpoint
from drivetrain.supervisor import preemption
from drivetrain.supervisor.preemption import NoAnswer, NoticeAddress
from drivetrain.system.signals import HANDLED_SIGNALS, PREEMPTION_NOTICE, PREEMPTION_SIGNAL, Interrupted, Signals
from tests.faults import small_job
from tests.messages import get_message, saying, says_each, says_only


class Provider:
    """A server that gives the answers that a test sets, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answer: tuple[int, str] = (404, "")
        self.more: dict[str, str] = {}
        self.token = ""
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked.append(("GET", self.path, dict(self.headers)))
                wants = provider.token and self.headers.get(preemption.TOKEN) != provider.token
                self.reply(*((401, "") if wants else provider.answer))

            def do_PUT(self) -> None:
                provider.asked.append(("PUT", self.path, dict(self.headers)))
                self.reply(200, provider.token)

            def reply(self, status: int, text: str) -> None:
                self.send_response(status)
                for name, value in provider.more.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *given: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/notice?v=1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def provider() -> Iterator[Provider]:
    fake_provider = Provider()
    yield fake_provider
    fake_provider.server.shutdown()
    fake_provider.server.server_close()


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (404, "Not Found", False),
        (204, "", False),
        (200, "", False),
        (200, "FALSE", False),
        (200, "NONE\n", False),
        (200, "[]", False),
        (200, "{}", True),
        (200, '{"DocumentIncarnation": 1, "Events": []}', False),
        (200, '{"Events": [{"EventType": "Preempt"}]}', True),
        (200, "TRUE", True),
        (200, '{"action": "terminate", "time": "2026-01-01T00:00:00Z"}', True),
        (200, "[" * 100_000, True),
    ],
)
def test_answers_that_are_a_preemption_notice(provider: Provider, status: int, text: str, expected: bool) -> None:
    provider.answer = (status, text)
    assert (NoticeAddress(provider.url).notice() is not None) is expected
    (method, path, headers) = provider.asked[0]
    assert (method, path) == ("GET", "/notice?v=1")
    assert headers["Metadata-Flavor"] == "Google"


def test_a_token_is_fetched_if_the_service_requires_one(provider: Provider) -> None:
    provider.token, provider.answer = "opensesame", (200, "TRUE")
    assert NoticeAddress(provider.url).notice() == "TRUE"
    assert [row[:2] for row in provider.asked] == [
        ("GET", "/notice?v=1"),
        ("PUT", "/latest/api/token"),
        ("GET", "/notice?v=1"),
    ]


def test_a_token_that_would_be_a_header_is_refused(provider: Provider) -> None:
    provider.token = "a\r\nHost: elsewhere"
    with pytest.raises(NoAnswer, check=saying("answers-asked-token", 401, 200)):
        NoticeAddress(provider.url).notice()


def test_a_redirect_is_not_followed(provider: Provider) -> None:
    elsewhere = Provider()
    elsewhere.answer = (200, "TRUE")
    provider.answer, provider.more = (302, ""), {"Location": elsewhere.url}
    with pytest.raises(NoAnswer, check=saying("answers-redirects-followed", 302)):
        NoticeAddress(provider.url).notice()
    assert elsewhere.asked == []
    elsewhere.server.shutdown()
    elsewhere.server.server_close()


def test_no_proxy_is_asked(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = Provider()
    monkeypatch.setenv("http_proxy", elsewhere.url)
    provider.answer = (200, "TRUE")
    assert NoticeAddress(provider.url).notice() == "TRUE"
    assert elsewhere.asked == []
    elsewhere.server.shutdown()
    elsewhere.server.server_close()


def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_no_server_and_no_http() -> None:
    with pytest.raises(NoAnswer, match=r"does not answer: .*refused"):
        NoticeAddress(f"http://127.0.0.1:{closed_port()}/").notice()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=lambda: listener.accept()[0].close())
        thread.start()
        with pytest.raises(NoAnswer, match="does not answer: "):
            NoticeAddress(f"http://127.0.0.1:{listener.getsockname()[1]}/").notice()
        thread.join()


def test_nothing_of_an_answer_is_recorded_but_its_status(
    provider: Provider, tmp_path: Path, restore_handlers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What answers may be a service that gives credentials, or that does not speak HTTP."""
    monkeypatch.setattr(preemption, "POLL_SECONDS", 0.02)
    provider.answer = (200, '{"AccessKeyId": "secret", "Events": [1]}')
    Signals()
    # The notice may arrive while the block is entered, and an interruption that nobody expects ends the test's process.
    with pytest.raises(Interrupted), preemption.watch(provider.url, tmp_path):
        time.sleep(60)
    assert says_each(events(tmp_path), [get_message("answers-machine-shut-down", provider.url, 200)])
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def answer() -> None:
            connection = listener.accept()[0]
            connection.recv(1 << 16)
            connection.sendall(b"secret\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(NoAnswer) as raised:
            NoticeAddress(f"http://127.0.0.1:{listener.getsockname()[1]}/").notice()
        thread.join()
    assert says_only(str(raised.value), "does-not-answer-badstatusline")


AWS, GOOGLE = "http://169.254.169.254/latest/meta-data", "http://metadata.google.internal/computeMetadata/v1/instance"


@pytest.mark.parametrize(
    "url",
    [
        f"{AWS}/spot/instance-action",
        f"{AWS}/spot/termination-time",
        "http://[fd00:ec2::254]/latest/meta-data/spot/instance-action",
        f"{GOOGLE}/preempted",
        "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01",
        "http://100.100.100.200/latest/meta-data/instance/spot/termination-time",
        "http://127.0.0.1:8000/notice?v=1",
        "http://[::1]/",
        "http://localhost",
    ],
)
def test_urls_where_a_notice_is_given(url: str) -> None:
    assert Checkpoint(notice=url).notice == url


@pytest.mark.parametrize(
    "url",
    [
        f"{AWS}/iam/security-credentials/",
        f"{AWS}/spot/instance-action/../../iam/security-credentials/",
        f"{AWS}/spot/instance-action?x",
        f"{AWS}/spot/instance-action\n",
        "http://169.254.169.254:81/latest/meta-data/spot/instance-action",
        "http://169.254.169.254/latest/user-data",
        f"{GOOGLE}/service-accounts/default/token",
        f"{GOOGLE}/preempted?recursive=true",
        "http://169.254.169.254/metadata/identity/oauth2/token?api-version=2018-02-01&resource=https://vault.azure.net",
        "http://169.254.170.2/v2/credentials/1",
        "http://100.100.100.200/latest/meta-data/ram/security-credentials/",
        "http://example.com/notice",
        "https://127.0.0.1/notice",
        "http://127.0.0.1.example.com/",
        "http://127.0.0.1@example.com/",
        "http://127.0.0.1:8000@example.com/",
        "http://127.0.0.1#@example.com/",
        "http://127.0.0.1:0/",
        "http://127.0.0.1/$(touch x)",
        "http://0.0.0.0/",
        "http://2130706433/",
        "http://localhost.example.com/",
        "http://10.0.0.1/",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    """Metadata services give the credentials of the machine under other paths."""
    with pytest.raises(ValidationError, check=saying("url-cloud-gives-notice")):
        Checkpoint(notice=url)


def test_one_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "REQUEST_TIMEOUT", 0.1)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(NoAnswer, check=saying("does-not-answer-timed-out")):
            NoticeAddress(f"http://127.0.0.1:{listener.getsockname()[1]}/").notice()


@pytest.fixture
def restore_handlers() -> Iterator[None]:
    numbers = (*HANDLED_SIGNALS, PREEMPTION_SIGNAL)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def events(folder: Path) -> list[str]:
    path = folder / "events.jsonl"
    return [json.loads(line)["text"] for line in path.read_text().splitlines()] if path.exists() else []


def test_an_address_problem_is_reported_once_and_the_notice_still_arrives(
    provider: Provider, tmp_path: Path, restore_handlers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preemption, "POLL_SECONDS", 0.02)
    provider.answer = (500, "")
    signals = Signals()
    interruption = pytest.raises(Interrupted, match=f"stopped by {PREEMPTION_NOTICE}")
    with interruption, preemption.watch(provider.url, tmp_path):
        while len(provider.asked) < 4:
            time.sleep(0.01)
        provider.answer = (200, "TRUE")
        time.sleep(60)
    texts = events(tmp_path)
    assert len(texts) == 2
    assert "answers 500; retrying" in texts[0]
    assert says_only(texts[1], "answers-machine-shut-down", provider.url, 200)
    # What the provider sends next is no second signal: it must not break into the save.
    os.kill(os.getpid(), signal.SIGTERM)
    assert signals.received == PREEMPTION_NOTICE


def test_none_starts_nothing(tmp_path: Path) -> None:
    before = threading.active_count()
    with preemption.watch(None, tmp_path):
        assert threading.active_count() == before


@pytest.mark.nightly
def test_a_preempted_run_stops_and_resumes_with_the_same_bits(provider: Provider, tmp_path: Path) -> None:
    """The URL may come and go between stop and resume."""
    job = small_job.write_job(tmp_path / "job")
    process = small_job.start(job, "--set", f"checkpoint.notice={provider.url}")
    log = job.parent / "job.log"
    while "validation/loss" not in log.read_text():
        assert process.poll() is None, log.read_text()
        time.sleep(0.02)
    provider.answer = (200, '{"action": "stop"}')
    assert process.wait(timeout=60) == 75, log.read_text()
    assert f"stopped by {PREEMPTION_NOTICE} after step" in log.read_text()
    small_job.finish(job)
    calm = small_job.write_job(tmp_path / "calm")
    small_job.finish(calm)
    assert small_job.differences(small_job.newest_run(calm), small_job.newest_run(job)) == []
