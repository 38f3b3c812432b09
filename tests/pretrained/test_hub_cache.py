"""The cache of networks from the hub: shared with other programs and processes, damaged, killed, on odd file systems."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from drivetrain.errors import StorageError
from drivetrain.pretrained import hub_client
from drivetrain.pretrained.hub import fetch_network as fetch
from tests.hub_double import COMMIT
from tests.hub_server import NAME, Fault, Hub
from tests.messages import says, says_only
from tests.pretrained.hub_network import (
    FILES,
    NEEDED,
    catch_hub_error,
    fetch_network,
    list_part_files,
    repository_cache,
)


def fill_cache(tmp_path: Path, files: dict[str, bytes]) -> Path:
    """What another program has put into the cache."""
    cache_folder = repository_cache(tmp_path)
    for part in ("blobs", f"snapshots/{COMMIT}", "refs"):
        (cache_folder / part).mkdir(parents=True)
    (cache_folder / "refs" / "main").write_text(COMMIT)
    for name, content in files.items():
        digest = hashlib.sha256(content).hexdigest()
        (cache_folder / "blobs" / digest).write_bytes(content)
        (cache_folder / "snapshots" / COMMIT / name).symlink_to(Path("..", "..", "blobs", digest))
    return cache_folder


def test_a_part_of_another_program_is_completed(hub: Hub, tmp_path: Path) -> None:
    cache_folder = fill_cache(
        tmp_path, {"config.json": FILES["config.json"], "notes": b"mine", "model.safetensors": b"damaged"}
    )
    fetched = fetch_network()
    assert {path.name for path in fetched.folder.iterdir()} == {*NEEDED, "notes"}
    assert (fetched.folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert sorted(path.name for path in (cache_folder / "snapshots").iterdir()) == [COMMIT]


def test_what_another_program_has_fetched_is_enough_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: Hub
) -> None:
    cache_folder = fill_cache(tmp_path, {name: FILES[name] for name in NEEDED})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch_network().commit == COMMIT
    (cache_folder / "snapshots" / COMMIT / "model.safetensors").resolve().write_bytes(b"x")
    assert says(catch_hub_error().given, "revision-main-complete-cache", tmp_path / "home" / "hub")


@pytest.mark.parametrize("missing", ["model-00002-of-00002.safetensors", "config.json"])
def test_a_part_of_a_network_from_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    names = ("config.json", "model.safetensors.index.json", *(f"model-0000{i}-of-00002.safetensors" for i in (1, 2)))
    fill_cache(tmp_path, {name: name.encode() for name in names if name != missing})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert says(catch_hub_error().given, "revision-main-complete-cache", tmp_path / "home" / "hub")


def test_a_damaged_file_of_ours_is_fetched_again(hub: Hub) -> None:
    path = fetch_network().folder / "model.safetensors"
    path.resolve().write_bytes(b"short")
    assert fetch_network().downloaded == ("model.safetensors",)
    assert path.read_bytes() == FILES["model.safetensors"]


def test_two_processes_fetch_it_once(hub: Hub) -> None:
    hub.faults = [Fault(path="safetensors", pause=0.02)]
    messages: list[str] = []
    threads = [threading.Thread(target=fetch, args=(NAME, "main", messages.append)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(hub.paths("safetensors")) == 1
    assert says_only(messages, "hub-another-process-fetching", "casa/beto")


def test_a_full_disk_and_a_cache_of_somebody_else(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fill_disk(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(hub_client, "sync_file", fill_disk)
    with pytest.raises(StorageError, match=r"No space left on device(.|\n)*set HF_HOME"):
        fetch_network()
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        fetch_network()


FETCH = f"from drivetrain.pretrained.hub import fetch_network as fetch; print(fetch({NAME!r}, 'main').folder)"


def test_a_killed_download_starts_again(hub: Hub, tmp_path: Path) -> None:
    hub.faults = [Fault(path="safetensors", pause=0.1)]
    process = subprocess.Popen([sys.executable, "-c", FETCH], stdout=subprocess.DEVNULL)
    part = repository_cache(tmp_path) / "blobs" / (hashlib.sha256(FILES["model.safetensors"]).hexdigest() + ".part")
    end = time.monotonic() + 60
    while time.monotonic() < end and not (part.exists() and part.stat().st_size > 200_000):
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (repository_cache(tmp_path) / "snapshots").exists(), "nothing half-written has its name"
    hub.faults, hub.requests[:] = [], []
    assert fetch_network().downloaded == ("model.safetensors",)
    assert [headers.get("Range") for path, headers in hub.requests if path.endswith("safetensors")] == [None]
    assert list_part_files(tmp_path) == []


def test_a_complete_network_of_another_program_is_used_when_the_hub_refuses(hub: Hub, tmp_path: Path) -> None:
    fill_cache(tmp_path, {name: FILES[name] for name in NEEDED})
    hub.faults = [Fault(status=401, headers={"X-Error-Code": "GatedRepo"})]
    assert fetch_network().commit == COMMIT
    (repository_cache(tmp_path) / "snapshots" / COMMIT / "model.safetensors").unlink()
    assert "gated" in catch_hub_error().given


def test_a_file_system_without_links_and_locks(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    def fails(*arguments: object) -> None:
        raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr(Path, "symlink_to", fails)
    monkeypatch.setattr(fcntl, "flock", fails)
    fetched = fetch_network(lines)
    assert (fetched.folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert says_only(lines[0], "hub-locked-supported-fetch", repository_cache(tmp_path))
    assert not fetch_network(lines).downloaded
