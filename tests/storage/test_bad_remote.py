"""What can be wrong with a store: each is told in three parts, by its place in the spec, with an exit code, and in docs/storage.md."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from drivetrain.errors import DrivetrainError, SpecError
from drivetrain.job_spec import load_job
from drivetrain.job_spec.spec_source import fetch
from drivetrain.storage import stored_copy
from drivetrain.storage.object_store import PROBE_NAME, ObjectStore, Patience
from drivetrain.supervisor.remote_copy import remote_runs
from tests.object_store import KEY, SECRET, Fault, FaultyStore, moto
from tests.paths import ROOT
from tests.supervisor.remote_copy.fake_run import faulty_store, open_store

COPIED = "s3://bucket/runs"
PHOTOS = "s3://bucket/photos"


@dataclass(frozen=True)
class Bad:
    """One situation."""

    what: str
    """As docs/storage.md calls it."""
    says: str
    """A part of the first line."""
    code: int = 7
    copy_to: str = COPIED
    train: str = PHOTOS
    fault: Fault | None = None
    methods: str = "GET HEAD PUT POST DELETE"
    """Of the requests that get the fault; LIST and READ: of lists, of the object by which a store is tried."""
    environ: dict[str, str] = field(default_factory=dict)
    """Variables; an empty one is unset."""
    before: Callable[[], object] = lambda: None
    """What is done to the store."""


def answer(status: int, code: str) -> Fault:
    return Fault("answer", status, code)


def https(endpoint: str) -> str:
    return endpoint.replace("http://", "https://")


ROWS = [
    Bad("an address with one slash", "checkpoint.copy_to: is 's3:/bucket/runs'", 2, "s3:/bucket/runs"),
    Bad("an address without a bucket", "checkpoint.copy_to: is 's3://'", 2, "s3://"),
    Bad("another scheme", "checkpoint.copy_to: is 'gcs://bucket/runs'", 2, "gcs://bucket/runs"),
    Bad(
        "an address with a password",
        "checkpoint.copy_to: is 's3://***@bucket/runs'",
        2,
        f"s3://me:{SECRET}@bucket/runs",
    ),
    Bad("a signed address", "checkpoint.copy_to: is 's3://bucket/runs?***'", 2, f"s3://bucket/runs?sig={SECRET}"),
    Bad("an address with dots", "checkpoint.copy_to: is 's3://bucket/../runs'", 2, "s3://bucket/../runs"),
    Bad("a web address for copies", "checkpoint.copy_to: is 'https://host/runs'", 2, "https://host/runs"),
    Bad("data at an address with one slash", "'s3:/bucket/photos'", 2, train="s3:/bucket/photos"),
    Bad(
        "an endpoint without a scheme",
        "AWS_ENDPOINT_URL=localhost:9000",
        environ={"AWS_ENDPOINT_URL": "localhost:9000"},
    ),
    Bad(
        "a host without an address (DNS)",
        "no connection",
        environ={"AWS_ENDPOINT_URL": "http://no-such-host.invalid:9000"},
    ),
    Bad("a port on which nobody listens", "no connection", environ={"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}),
    Bad("TLS that fails", "TLS failed: the certificate is not trusted here", environ={"AWS_ENDPOINT_URL": "TLS"}),
    Bad(
        "certificates that are not there",
        "SSL_CERT_FILE: /nowhere/ca.pem",
        environ={"SSL_CERT_FILE": "/nowhere/ca.pem"},
    ),
    Bad(
        "no credentials",
        "no credentials were found",
        environ={"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_METADATA_ENDPOINT": "http://127.0.0.1:1"},
    ),
    Bad(
        "a service of roles that fails",
        "the store does not answer (503",
        fault=answer(503, "Unavailable"),
        environ={"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_METADATA_ENDPOINT": "STORE"},
    ),
    Bad("half of the credentials", "no credentials were found", environ={"AWS_ACCESS_KEY_ID": ""}),
    Bad(
        "a file of credentials that is not there",
        "GOOGLE_APPLICATION_CREDENTIALS: /nowhere/key.json does not exist",
        train="gs://bucket/photos",
        environ={"GOOGLE_APPLICATION_CREDENTIALS": "/nowhere/key.json"},
    ),
    Bad(
        "a token file that is not there",
        "AWS_WEB_IDENTITY_TOKEN_FILE: /nowhere/token does not exist",
        environ={
            "AWS_ACCESS_KEY_ID": "",
            "AWS_SECRET_ACCESS_KEY": "",
            "AWS_WEB_IDENTITY_TOKEN_FILE": "/nowhere/token",
            "AWS_ROLE_ARN": "arn:aws:iam::1:role/x",
            "AWS_ROLE_SESSION_NAME": "x",
        },
    ),
    Bad("rights that are missing", "the store refuses the request (403 AccessDenied)", fault=Fault("denied")),
    Bad(
        "a key that is not known",
        "the store refuses the request (403 InvalidAccessKeyId)",
        fault=answer(403, "InvalidAccessKeyId"),
    ),
    Bad(
        "a wrong secret",
        "the store refuses the request (403 SignatureDoesNotMatch)",
        fault=answer(403, "SignatureDoesNotMatch"),
    ),
    Bad(
        "a token that has ended", "the store refuses the request (400 ExpiredToken)", fault=answer(400, "ExpiredToken")
    ),
    Bad(
        "a clock that is wrong",
        "the store refuses the request (403 RequestTimeTooSkewed)",
        fault=answer(403, "RequestTimeTooSkewed"),
    ),
    Bad(
        "another region",
        "the store refuses the request (a redirect without an address, as for a bucket in another region)",
        fault=answer(301, "PermanentRedirect"),
    ),
    Bad(
        "another region, signed",
        "the store refuses the request (400 AuthorizationHeaderMalformed)",
        fault=answer(400, "AuthorizationHeaderMalformed"),
    ),
    Bad(
        "rights to read only",
        "cannot write: the store refuses the request (403 AccessDenied)",
        fault=Fault("denied"),
        methods="PUT POST DELETE",
    ),
    Bad(
        "no right to read",
        "cannot read: the store refuses the request (403 AccessDenied)",
        fault=Fault("denied"),
        methods="READ",
    ),
    Bad(
        "no right to remove",
        "cannot remove: the store refuses the request (403 AccessDenied)",
        fault=Fault("denied"),
        methods="POST DELETE",
    ),
    Bad(
        "no right to list",
        "cannot list: the store refuses the request (403 AccessDenied)",
        fault=Fault("denied"),
        methods="LIST",
    ),
    Bad("a bucket that is not there", "there is no bucket nowhere", copy_to="s3://nowhere/runs"),
    Bad(
        "a bucket that is full",
        "the store refuses the request (507 InsufficientStorage)",
        fault=answer(507, "InsufficientStorage"),
        methods="PUT",
    ),
    Bad(
        "a quota that is used up",
        "the store refuses the request (403 QuotaExceeded)",
        fault=answer(403, "QuotaExceeded"),
        methods="PUT",
    ),
    Bad(
        "no conditional writes",
        "no conditional writes: it answered 501",
        fault=answer(501, "NotImplemented"),
        methods="PUT",
    ),
    Bad(
        "conditions that are ignored",
        "no conditional writes: it wrote over an object that must not exist",
        fault=Fault("careless"),
    ),
    Bad("errors without an end", "the store does not answer (500 InternalError)", fault=answer(500, "InternalError")),
    Bad("too many requests", "the store does not answer (503 SlowDown)", fault=Fault("slow down")),
    Bad(
        "too many requests (429)",
        "the store does not answer (429 TooManyRequests)",
        fault=answer(429, "TooManyRequests"),
    ),
    Bad("a store that is silent", "the store does not answer (no answer in time)", fault=Fault("silent")),
    Bad("answers that are cut", "the store does not answer (the connection was cut)", fault=Fault("gone")),
    Bad("nothing at the address", "data.train: s3://bucket/nothing does not exist", 3, train="s3://bucket/nothing"),
    Bad(
        "files that only your code reads",
        "data.train: s3://bucket/tars has tar files, such as a.tar",
        3,
        train="s3://bucket/tars",
        before=lambda: open_store("tars").put("a.tar", b"x"),
    ),
]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with moto() as address, faulty_store(address):
        open_store("photos/a").put("1.png", b"x")
        yield address


@pytest.fixture
def proxy(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FaultyStore]:
    patience = Patience(retries=0.2, silence=0.5, connect=0.5)
    monkeypatch.setattr(stored_copy, "PATIENCE", patience)
    monkeypatch.setattr(remote_runs, "ObjectStore", functools.partial(ObjectStore, patience=patience))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    with faulty_store(server) as faulty_proxy:
        yield faulty_proxy


def use_stores(path: Path) -> list[DrivetrainError]:
    """What a training says about the data and the place of the copies before its first step."""
    errors: list[DrivetrainError] = []
    try:
        job = load_job.load(path)
        load_job.load(path, locate=fetch)
    except SpecError as error:
        return [error]
    except DrivetrainError as error:
        errors.append(error)
    try:
        with remote_runs.open_runs(Path("runs"), job, new=True, is_leader=True):
            pass
    except DrivetrainError as error:
        errors.append(error)
    return errors


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_it_is_told(proxy: FaultyStore, row: Bad, monkeypatch: pytest.MonkeyPatch) -> None:
    row.before()

    def fault(number: int, method: str, path: str) -> Fault | None:
        listing = method == "GET" and "list-type" in path
        reading = method == "GET" and PROBE_NAME in path
        hit = {"LIST": listing, "READ": reading}.get(row.methods, method in row.methods.split())
        return row.fault if hit else None

    proxy.fault = fault
    for name, value in row.environ.items():
        if value:
            endpoints = {"TLS": https(proxy.endpoint), "STORE": proxy.endpoint}
            monkeypatch.setenv(name, endpoints.get(value, value))
        else:
            monkeypatch.delenv(name)
    data = f'{{train: "{row.train}"}}'
    Path("job.yaml").write_text(
        f'name: t\ntask: image-classification\ndata: {data}\ncheckpoint: {{copy_to: "{row.copy_to}"}}\n'
    )
    errors = use_stores(Path("job.yaml"))
    output = "\n".join(map(str, errors))
    assert row.says in output
    assert errors[0].exit_code == row.code
    assert SECRET not in output
    assert KEY not in output
    first, second, third = output.splitlines()[:3]
    assert re.match(r"job\.yaml:\d+:\d+: (data\.train|checkpoint\.copy_to): ", first), first
    assert second.startswith("  possible: ")
    assert third.startswith("  do:       ")


def test_the_page_lists_them() -> None:
    """Rows of docs/storage.md: an exit code, and all that is wrong where a command ends with it."""
    page = (ROOT / "docs" / "storage.md").read_text()
    section = page.partition("## What can be wrong\n")[2].partition("\n## ")[0]
    listed = {int(code): text.split("; ") for code, text in re.findall(r"^\| (\d) \| (.*) \|$", section, re.MULTILINE)}
    assert listed == {code: [row.what for row in ROWS if row.code == code] for code in (2, 3, 7)}
    assert len(ROWS) >= 30
