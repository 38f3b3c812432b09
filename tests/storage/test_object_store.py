"""Object stores against a real S3 server, and behind a proxy that fails: retried, bounded, and told in three parts."""

from __future__ import annotations

import functools
import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from drivetrain.errors import StorageError
from drivetrain.storage import object_store
from drivetrain.storage.object_store import ObjectStore, Patience
from drivetrain.storage.remote_address import parse
from drivetrain.storage.store_errors import RemoteError, Trouble
from tests.messages import saying, says
from tests.object_store import KEY, SECRET, Fault, FaultyStore
from tests.supervisor.remote_copy.fake_run import faulty_store

SHORT = Patience(retries=1.5, silence=1.0, connect=1.0)


@pytest.fixture
def proxy(s3: str) -> Iterator[FaultyStore]:
    with faulty_store(s3) as faulty_proxy:
        yield faulty_proxy


@pytest.fixture
def store(proxy: FaultyStore, request: pytest.FixtureRequest) -> ObjectStore:
    return ObjectStore(parse(f"s3://bucket/{request.node.name}"), Patience(retries=20, silence=1.0, connect=1.0))


def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def fail_first(count: int, fault: Fault, method: str = "") -> Callable[[int, str, str], Fault | None]:
    """The fault for the first so many requests of a method."""
    remaining = [count]

    def decide(number: int, request_method: str, path: str) -> Fault | None:
        if (not method or request_method == method) and remaining[0] > 0:
            remaining[0] -= 1
            return fault
        return None

    return decide


def test_written_read_listed_removed(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(content(2 * object_store.CHUNK_BYTES + 5))
    store.put("a/one", b"1")
    store.put("a/b/two", b"22")
    store.put("a name with ü and +/x", b"3")
    with (tmp_path / "long").open("rb") as file:
        store.put_file("a/long", file)
    assert store.get("a/one") == b"1"
    digest = hashlib.sha256()
    for piece in store.stream("a/long"):
        assert len(piece) <= 3 * object_store.CHUNK_BYTES
        digest.update(piece)
    assert digest.digest() == hashlib.sha256((tmp_path / "long").read_bytes()).digest()
    assert [(entry.name, entry.bytes) for entry in store.objects("a")] == [
        ("a/b/two", 2),
        ("a/long", 2 * object_store.CHUNK_BYTES + 5),
        ("a/one", 1),
    ]
    assert store.folders() == ["a", "a name with ü and +"]
    assert getattr(store.find_head("a/one"), "tag", "") == store.objects("a/")[-1].tag
    store.delete(["a/one", "a/never-there"])
    assert store.find_head("a/one") is None
    assert store.objects("nothing") == []


def test_written_only_if_nobody_else_has(store: ObjectStore) -> None:
    assert store.create("lock", b"mine")
    assert not store.create("lock", b"theirs")
    assert store.get("lock") == b"mine"


@pytest.mark.parametrize(
    "fault", [Fault("slow down"), Fault("gone"), Fault("lost"), Fault("silent")], ids=lambda f: f.kind
)
def test_what_passes_is_tried_again(store: ObjectStore, proxy: FaultyStore, fault: Fault) -> None:
    store.put("x", b"1")
    proxy.fault = fail_first(2, fault)
    store.put("x", b"2")
    proxy.fault = fail_first(2, fault)
    assert store.get("x") == b"2"
    proxy.fault = fail_first(2, fault)
    assert [entry.name for entry in store.objects()] == ["x"]


@pytest.mark.parametrize("at", [0, 1, 100_000, 999_999])
def test_an_answer_that_is_cut_is_taken_up_again(store: ObjectStore, proxy: FaultyStore, at: int) -> None:
    store.put("x", content(1_000_000))
    proxy.fault = fail_first(1, Fault("cut", at), "GET")
    assert store.get("x") == content(1_000_000)
    proxy.fault = fail_first(1, Fault("cut", at), "GET")
    assert b"".join(store.stream("x")) == content(1_000_000)
    proxy.fault = fail_first(1, Fault("cut", at), "GET")
    assert [entry.name for entry in store.objects()] == ["x"]


def test_a_long_upload_with_faults_in_between(store: ObjectStore, proxy: FaultyStore, tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(content(3 * object_store.CHUNK_BYTES))
    proxy.fault = lambda number, method, path: Fault("slow down") if number % 3 == 1 else None
    with (tmp_path / "long").open("rb") as file:
        store.put_file("long", file)
    proxy.fault = lambda number, method, path: None
    assert store.get("long") == content(3 * object_store.CHUNK_BYTES)


@pytest.mark.parametrize("fault", [Fault("slow down"), Fault("gone"), Fault("silent")], ids=lambda f: f.kind)
def test_it_gives_up_in_time(proxy: FaultyStore, fault: Fault) -> None:
    store = ObjectStore(parse("s3://bucket/x"), SHORT)
    proxy.fault = lambda number, method, path: fault
    with pytest.raises(RemoteError, check=saying("store-does-not-answer")) as caught:
        store.put("x", b"1")
    assert caught.value.trouble is Trouble.AWAY
    assert caught.value.exit_code == 7
    assert proxy.endpoint in caught.value.action


def format_error(error: RemoteError) -> str:
    """The message, which has three parts and no credential."""
    assert error.given
    assert error.possible
    assert error.action
    assert KEY not in str(error)
    assert SECRET not in str(error)
    return str(error)


def test_a_bucket_that_is_not_there(proxy: FaultyStore) -> None:
    store = ObjectStore(parse("s3://nowhere/runs"), SHORT)
    for task in (lambda: store.put("x", b"1"), lambda: store.get("x"), lambda: store.objects()):
        with pytest.raises(RemoteError) as caught:
            task()
        assert caught.value.trouble is Trouble.NO_BUCKET
        assert says(format_error(caught.value), "there-is-no-bucket-nowhere")
        assert proxy.endpoint in caught.value.given


def test_an_object_that_is_not_there(store: ObjectStore) -> None:
    with pytest.raises(RemoteError) as caught:
        store.get("no")
    assert caught.value.trouble is Trouble.MISSING
    assert says(format_error(caught.value), "does-not-exist-3", f"{store.address}/no")


def test_no_permission(store: ObjectStore, proxy: FaultyStore) -> None:
    proxy.fault = lambda number, method, path: Fault("denied")
    for task in (lambda: store.put("x", b"1"), lambda: store.get("x"), lambda: store.objects()):
        with pytest.raises(RemoteError) as caught:
            task()
        assert caught.value.trouble is Trouble.REFUSED
        assert says(format_error(caught.value), "store-refuses-accessdenied", 403)
        assert "AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, AWS_SECRET_ACCESS_KEY" in caught.value.action


def test_half_of_the_credentials(proxy: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(RemoteError) as caught:
        ObjectStore(parse("s3://bucket/x"))
    assert caught.value.trouble is Trouble.NO_CREDENTIALS
    assert "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY" in format_error(caught.value)


def test_no_credentials_at_all(proxy: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client asks the machine for its role then, which a laptop has not."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(RemoteError) as caught:
        ObjectStore(parse("s3://bucket/x"), SHORT).get("x")
    assert caught.value.trouble is Trouble.NO_CREDENTIALS
    assert says(format_error(caught.value), "no-credentials-were-found")


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "http://no-such-host.invalid:9000"])
def test_a_host_that_is_not_reached(proxy: FaultyStore, monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(RemoteError) as caught:
        ObjectStore(parse("s3://bucket/x"), SHORT).get("x")
    assert caught.value.trouble is Trouble.AWAY
    assert f"AWS_ENDPOINT_URL={endpoint}" in format_error(caught.value)


def test_a_web_server_is_read(tmp_path: Path) -> None:
    (tmp_path / "a b.txt").write_bytes(b"123")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        web = ObjectStore(parse(f"http://127.0.0.1:{server.server_port}"), SHORT)
        assert web.get("a b.txt") == b"123"
        with pytest.raises(RemoteError) as caught:
            web.get("no")
        assert caught.value.trouble is Trouble.MISSING
        server.shutdown()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "garbage",
        "http:///host",
        "http://host:99999",
        "http://999.1.1.1",
        "http://ho st",
        "http://a%41b",
        f"http://u:{SECRET}/q@host",
        f"http://u:{SECRET}/\n@host",
    ],
)
def test_an_endpoint_that_is_no_address(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """The client would panic, which no `except Exception` catches."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    with pytest.raises(StorageError, check=saying("is-no-address-of-store")) as caught:
        ObjectStore(parse("s3://bucket"), SHORT).find("x")
    assert "unset AWS_ENDPOINT_URL " in caught.value.action
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("first", ["AWS_ENDPOINT", "AWS_ENDPOINT_URL"])
def test_of_two_endpoints_one_is_asked_and_named(
    proxy: FaultyStore, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Whichever was set first: the client itself takes that which was set last."""
    values = {"AWS_ENDPOINT_URL": "https://127.0.0.1:1", "AWS_ENDPOINT": proxy.endpoint}
    for name in values:
        monkeypatch.delenv(name, raising=False)
    for name in (first, *values):
        monkeypatch.setenv(name, values[name])
    with pytest.raises(RemoteError, check=saying("store-does-not-answer")) as caught:
        ObjectStore(parse("s3://bucket/x"), SHORT).get("x")
    assert "AWS_ENDPOINT_URL=https://127.0.0.1:1" in caught.value.action
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    monkeypatch.setenv("AWS_ENDPOINT", "https://127.0.0.1:1")
    assert ObjectStore(parse("s3://bucket/x"), SHORT).find("x") is None


@pytest.mark.parametrize(
    ("address", "name", "other"),
    [
        ("gs://bucket", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_BEARER_TOKEN"),
        ("gs://bucket", "GOOGLE_SERVICE_ACCOUNT", ""),
        ("s3://bucket", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ACCESS_KEY_ID"),
    ],
)
def test_a_file_of_credentials_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, address: str, name: str, other: str
) -> None:
    """The store is not asked then; with another credential that makes the file needless, it is."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv(name, "/nowhere/key")
    with pytest.raises(StorageError, check=saying("is-not-there-or-cannot", name, "/nowhere/key")) as caught:
        ObjectStore(parse(address))
    assert f"unset {name}" in caught.value.action
    if other:
        monkeypatch.setenv(other, "x")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
        ObjectStore(parse(address))


def test_certificates_that_cannot_be_read(proxy: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    with pytest.raises(StorageError, match="SSL_CERT_FILE: /nowhere/ca"):
        ObjectStore(parse("s3://bucket/x"))


def test_a_client_that_is_not_installed(proxy: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    with pytest.raises(StorageError, check=saying("obstore-which-is-not-installed-here")):
        ObjectStore(parse("s3://bucket/x"))
