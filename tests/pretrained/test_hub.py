"""Networks by name: fetched once, compared with their hashes, and what a hub can do wrong, against a real server."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from drivetrain.pretrained import families, hub_client
from drivetrain.pretrained.hub import fetch_network as fetch
from drivetrain.pretrained.hub_cache import HubFile, find_repository
from drivetrain.pretrained.hub_error import NETWORK, HubError
from drivetrain.system import download_progress
from drivetrain.system.installation import INSTALL_TORCH
from tests.hub_double import COMMIT
from tests.hub_server import NAME, Fault, Hub
from tests.messages import begins_with, ends_with, get_message, saying, says, says_each, says_only
from tests.pretrained.hub_network import (
    FILES,
    NEEDED,
    OTHER,
    catch_hub_error,
    fetch_network,
    list_part_files,
    repository_cache,
)


def test_it_is_fetched_once_and_found_without_a_request(hub: Hub, lines: list[str], tmp_path: Path) -> None:
    fetched = fetch_network(lines)
    assert fetched.folder == repository_cache(tmp_path) / "snapshots" / COMMIT
    assert {path.name: path.read_bytes() for path in fetched.folder.iterdir()} == {n: FILES[n] for n in NEEDED}
    assert sorted(fetched.downloaded) == NEEDED
    assert lines == [f"hub: fetching casa/beto at {COMMIT[:12]} from {hub.endpoint}: 3 files, 1.0 MB"]
    assert not [path for path in hub.paths() if path.endswith((".py", ".h5", ".md"))], "neither code nor other weights"
    hub.requests.clear()
    cached = fetch_network(lines)
    assert (cached.files, cached.downloaded, hub.requests, len(lines)) == (fetched.files, (), [], 1)


def test_other_libraries_find_it(hub: Hub, tmp_path: Path) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    fetched = fetch_network()
    library_folder = huggingface_hub.snapshot_download(
        NAME, cache_dir=tmp_path / "home" / "hub", local_files_only=True, allow_patterns=["*.json", "*.safetensors"]
    )
    assert Path(library_folder) == fetched.folder
    assert len(huggingface_hub.scan_cache_dir(tmp_path / "home" / "hub").repos) == 1


def test_a_revision_is_resolved_once(hub: Hub) -> None:
    fetch_network()
    hub.revisions = {"main": OTHER, "old": COMMIT}
    assert fetch_network().commit == COMMIT, "main stays what it was when it was fetched"
    assert fetch_network(revision=OTHER).commit == OTHER
    assert fetch_network(revision="old").commit == COMMIT
    hub.requests.clear()
    assert [fetch_network(revision=word).commit for word in ("old", OTHER, "main")] == [COMMIT, OTHER, COMMIT]
    assert hub.requests == []
    assert says_only(catch_hub_error(revision="none").given, "hub-has-no-such-revision-of")


def test_an_update_asks_which_commit_it_is_now(hub: Hub, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fetch_network()
    hub.revisions["main"] = OTHER
    assert fetch_network().commit == COMMIT
    update = fetch(NAME, "main", lines.append, update=True)
    assert (update.commit, update.downloaded) == (OTHER, ())
    assert fetch_network().commit == OTHER
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set"):
        fetch(NAME, "main", lines.append, update=True)


@pytest.mark.parametrize(
    ("status", "headers", "token", "problem", "action"),
    [
        (
            404,
            {"X-Error-Code": "RepoNotFound"},
            "",
            "no network of this name that everybody sees (404)",
            "check the spelling; if it is private, export HF_TOKEN",
        ),
        (
            401,
            {"X-Error-Code": "RepoNotFound"},
            "",
            "no network of this name that everybody sees (401)",
            "environment: [HF_TOKEN]",
        ),
        (
            404,
            {"X-Error-Code": "RepoNotFound"},
            "t0ken",
            "no network of this name that the token of HF_TOKEN sees",
            "whose token it is",
        ),
        (401, {"X-Error-Code": "GatedRepo"}, "", "answers 401: this network is gated", "ask for access on its page"),
        (
            403,
            {"X-Error-Code": "GatedRepo"},
            "t0ken",
            "is gated, and the token of HF_TOKEN has no access",
            "ask for access",
        ),
        (
            401,
            {"X-Error-Message": "Invalid credentials in Authorization header"},
            "t0ken",
            "does not accept the token of HF_TOKEN",
            "export HF_TOKEN",
        ),
        (418, {}, "", "the hub answers 418", "check HF_ENDPOINT"),
    ],
)
def test_refusals(
    hub: Hub,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    headers: dict[str, str],
    token: str,
    problem: str,
    action: str,
) -> None:
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    hub.faults = [Fault(status=status, headers=headers)]
    error = catch_hub_error()
    assert problem in error.given
    assert action in error.action
    assert error.possible
    assert token == "" or token not in f"{error.given} {error.action}"
    assert len(hub.requests) == 1, "the same answer would come again"


def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of the client, which are not waited for."""
    slept: list[float] = []
    monkeypatch.setattr(hub_client, "time", SimpleNamespace(sleep=slept.append, monotonic=time.monotonic))
    return slept


def test_too_many_requests_waits_as_asked(hub: Hub, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    slept = pauses(monkeypatch)
    hub.faults = [Fault(status=429, headers={"Retry-After": "20"}, times=2)]
    assert fetch_network(lines).downloaded
    assert slept == [20, 20]
    assert re.fullmatch(r"hub: 429, too many requests; next attempt in 20 s", lines[0])


@pytest.mark.parametrize(
    "headers", [{"Retry-After": "3600"}, {"Retry-After": "90"}, {"RateLimit": '"api";r=0;t=200'}, {}]
)
def test_too_many_requests_ends(hub: Hub, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    slept = pauses(monkeypatch)
    hub.faults = [Fault(status=429, headers=headers)]
    error = catch_hub_error()
    assert says(error.given, "too-many-requests-asks", 429)
    assert says(error.action, "try-again-later-export")
    assert sum(slept) <= hub_client.MAX_WAIT_SECONDS
    assert bool(slept) == (headers != {"Retry-After": "3600"})


def test_an_error_of_the_hub_passes(hub: Hub, lines: list[str]) -> None:
    hub.faults = [Fault(status=503, times=2), Fault(path="safetensors", status=502, times=1)]
    assert fetch_network(lines).downloaded
    assert says_only(lines[0], "hub-error-hub-next", 503, 0)


def test_an_error_of_the_hub_stays(hub: Hub) -> None:
    hub.faults = [Fault(status=500)]
    error = catch_hub_error()
    assert says_each((error.given, error.action), (get_message("hub-answers-error-own", 500), "try again later"))
    assert len(hub.requests) == hub_client.MAX_ATTEMPTS


def test_a_cut_file_is_continued(hub: Hub, lines: list[str], tmp_path: Path) -> None:
    hub.faults = [Fault(path="safetensors", cut=300_000, times=2)]
    assert (fetch_network(lines).folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    byte_ranges = [headers.get("Range") for path, headers in hub.requests if path.endswith("safetensors")]
    assert byte_ranges == [None, "bytes=300000-", "bytes=600000-"]
    assert list_part_files(tmp_path) == []


def test_a_file_that_stays_cut_has_no_name_and_is_fetched_again(hub: Hub, tmp_path: Path) -> None:
    hub.faults = [Fault(path="safetensors", cut=300_000, times=1), Fault(path="safetensors", cut=0)]
    error = catch_hub_error()
    assert says(error.given, "stops-early-peer-closed", hub.endpoint)
    assert not (repository_cache(tmp_path) / "snapshots" / COMMIT).exists(), "a part is never used"
    hub.faults, hub.requests[:] = [], []
    assert fetch_network().downloaded
    assert [headers.get("Range") for path, headers in hub.requests if path.endswith("safetensors")] == [None]
    assert list_part_files(tmp_path) == []


@pytest.mark.parametrize("size", [1_000, 2_000_000])
def test_a_file_of_another_size_than_its_entry(hub: Hub, size: int) -> None:
    content = hub.files["model.safetensors"]
    hub.files["model.safetensors"] = (content * 2)[:size]
    file = HubFile("model.safetensors", len(content), hashlib.sha256(content).hexdigest())
    client = hub_client.connect(NAME, NETWORK, lambda line: None)
    repository = find_repository(NAME, NETWORK)
    with (
        client.http,
        repository.locked(print),
        pytest.raises(HubError, check=saying("another-hash-hub-says-downloads", "model.safetensors")),
    ):
        client.download(
            COMMIT, file, repository.blob(file), download_progress.DownloadProgress("hub", file.size, print)
        )


def test_a_server_that_ignores_ranges(hub: Hub, lines: list[str]) -> None:
    hub.ignores_range, hub.faults = True, [Fault(path="safetensors", cut=300_000, times=1)]
    assert (fetch_network(lines).folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_a_wrong_hash_is_fetched_again_and_then_refused(hub: Hub, lines: list[str], tmp_path: Path) -> None:
    hub.faults = [Fault(path="safetensors", spoil=True, times=1)]
    assert (fetch_network(lines).folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert says_each(lines[1:], [get_message("hub-another-hash-hub", "model.safetensors")])
    shutil.rmtree(repository_cache(tmp_path))
    hub.faults = [Fault(path="tokenizer.json", spoil=True), Fault(path="safetensors", spoil=True)]
    error = catch_hub_error()
    assert says(error.given, "another-hash-hub-says")
    assert says(error.action, "proxy-mirror-hf-endpoint")
    assert list_part_files(tmp_path) == []
    assert not list(repository_cache(tmp_path).rglob("snapshots/*"))


def test_a_slow_link_is_told(hub: Hub, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_progress, "INTERVAL_SECONDS", 0.1)
    hub.faults = [Fault(path="safetensors", pause=0.05)]
    begun = time.monotonic()
    fetch_network(lines)
    assert 2 <= len(lines[1:]) <= (time.monotonic() - begun) / download_progress.INTERVAL_SECONDS
    for line in lines[1:]:
        assert re.fullmatch(r"hub: \S+ \w+ of \S+ \w+, \S+ \w+/s, about \d+ (s|min) left", line)


def test_a_hub_that_falls_silent(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_client, "READ_TIMEOUT_SECONDS", 0.1)
    hub.faults = [Fault(path="safetensors", pause=0.5)]
    error = catch_hub_error()
    assert says(error.given, "stops-early-answer-within", hub.endpoint, "0.1")


def test_no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        error = catch_hub_error()
    assert error.offline
    assert begins_with(error.given, "revision-main-cache", tmp_path / "home" / "hub", "http://127.0.0.1")
    assert ends_with(error.given, "reached-connection-refused")


def test_offline_by_request(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    error = catch_hub_error()
    assert says(error.given, "hf-hub-offline-set")
    assert "unset HF_HUB_OFFLINE" in error.action
    assert hub.requests == []


def test_a_hub_that_talks_nonsense(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.revisions = {"main": "../../../etc"}
    assert says(catch_hub_error().given, "answers-with-no-commit")
    monkeypatch.setenv("HF_ENDPOINT", "huggingface.co")
    assert catch_hub_error().given == "HF_ENDPOINT is 'huggingface.co'"


def test_names_and_hashes_that_would_leave_the_cache(hub: Hub) -> None:
    rows = [
        {"type": "file", "path": "a.json", "size": 1, "oid": "../../x"},
        {"type": "file", "path": "../a.json", "size": 1, "oid": "0" * 40},
        {"type": "file", "path": "a.json", "size": "1", "oid": "0" * 40},
        {"type": "directory", "path": "b", "oid": "0" * 40},
    ]
    assert [hub_client.read_listed_file(row) for row in rows] == [None] * len(rows)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"model.safetensors": b"x"}, "has no config.json"),
        ({"config.json": b"{}", "tf_model.h5": b"x"}, "has no weights that can be used; it has tf_model.h5"),
        ({"config.json": b"{}"}, "has no weights that can be used; it has none"),
    ],
)
def test_what_is_no_network(hub: Hub, files: dict[str, bytes], problem: str) -> None:
    hub.files = files
    assert catch_hub_error().given == problem
    assert hub.paths("resolve") == []


def test_shards(hub: Hub) -> None:
    del hub.files["model.safetensors"]
    parts = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    hub.files |= {part: part.encode() for part in parts}
    hub.files["model.safetensors.index.json"] = json.dumps({"weight_map": dict(zip("ab", parts, strict=True))}).encode()
    assert {file.name for file in fetch_network().files} >= {*parts, "model.safetensors.index.json"}


def test_the_pooling_of_sentence_transformers_comes_along_and_other_folders_do_not(hub: Hub) -> None:
    hub.files |= {"1_Pooling/config.json": b'{"pooling_mode_mean_tokens": true}', "onnx/config.json": b"{}"}
    fetched = fetch_network()
    assert families.read_pooling(fetched.folder) == "mean"
    assert not (fetched.folder / "onnx").exists()
    assert fetch_network().files == fetched.files, "complete"


def test_without_the_library(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    error = catch_hub_error()
    assert says(error.given, "package-huggingface-hub-installed")
    assert INSTALL_TORCH in error.action
