"""Containers and an object store: one that is lost with its volumes and its disk ends elsewhere with the same bits.

The run is started as users start it. What it was given to reach its store is in no file, log or setting.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drivetrain.storage.object_store import ObjectStore
from drivetrain.storage.remote_address import parse
from tests.docker.launched_checkout import NO_TORCH, copy_checkout, list_containers, project_name, remove_containers
from tests.faults import small_job
from tests.messages import says
from tests.object_store import KEY, SECRET, moto

PATIENT = 240.0


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """A store on this machine that containers reach: at the address of the engine's bridge."""
    line = ["docker", "network", "inspect", "bridge", "--format", "{{json .IPAM.Config}}"]
    settings = json.loads(subprocess.run(line, capture_output=True, text=True, check=False).stdout or "[]")
    # An engine names only a gateway that was chosen; by itself it takes the first address.
    gateway = next((subnet.get("Gateway") or str(ipaddress.ip_network(subnet["Subnet"])[1]) for subnet in settings), "")
    with socket.socket() as probe:
        try:
            probe.bind((gateway or "none", 0))
        except OSError:
            pytest.skip(f"the engine's bridge ({gateway or 'none'}) is not an address of this machine")
    with moto(gateway) as address:
        yield address


@pytest.fixture
def variables(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [variable for variable in os.environ if variable.startswith("AWS_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{store}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


def start(folder: Path, job: Path, *options: str) -> subprocess.Popen[bytes]:
    """The command of a user whose host has no torch; what it prints is added to job.log of its checkout."""
    arguments = ["train", str(job), "--set", "optimize.measure=off", *options]
    with (folder.parent / "job.log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "-c", NO_TORCH, *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{folder}/runtime:{folder}"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def wait(condition: Callable[[], object], process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENT
    while not condition():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)


def describe_container(container: str) -> str:
    """Settings, log and processes of a container, and the history of its image."""
    image = docker("inspect", "--format", "{{.Image}}", container).strip()
    commands = (["inspect", container], ["logs", container], ["top", container, "-eo", "pid,args"])
    return "".join(docker(*command) for command in (*commands, ["history", "--no-trunc", image]))


def docker(*words: str) -> str:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def command_lines() -> str:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_bytes().decode(errors="replace"))
    return "\n".join(lines)


def find_credential_files(*folders: Path) -> list[Path]:
    """Files with a credential in them."""
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in files if any(word.encode() in path.read_bytes() for word in (KEY, SECRET))]


def test_lost_with_its_volumes_it_goes_on_elsewhere(cpu_image: str, tmp_path: Path, variables: None) -> None:
    prefix = "lost"
    store = ObjectStore(parse(f"s3://bucket/{prefix}/small-001"))
    # Batches of two samples: the run lasts until it is looked at, on a fast machine too.
    job = small_job.write_job(tmp_path / "job", epochs="30", batch_size="2")
    first_checkout, second_checkout = (
        copy_checkout(tmp_path / folder_name / "drivetrain") for folder_name in ("one", "two")
    )
    log = first_checkout.parent / "job.log"
    try:
        assert start(second_checkout, job).wait(PATIENT) == 0, (second_checkout.parent / "job.log").read_text()
        uninterrupted = Path(shutil.move(second_checkout / "runs" / "small-001", tmp_path / "peaceful"))
        copy_options = ("--set", f"checkpoint.copy_to=s3://bucket/{prefix}")
        process = start(first_checkout, job, *copy_options)
        wait(lambda: len(list_manifests(store)) > 1, process, log)
        trainer = f"{project_name(first_checkout)}-small-trainer-1"
        engine_text = describe_container(trainer) + command_lines()
        assert json.loads(docker("inspect", trainer))[0]["State"]["Running"]
        docker("rm", "-f", "-v", trainer)
        process.wait(PATIENT)
        credential_files = find_credential_files(
            first_checkout / "runs", job.parent, Path.home() / ".cache" / "drivetrain"
        )
        shutil.rmtree(first_checkout / "runs")
        assert b'"running"' in store.get("state.json"), "it was in the middle"
        assert start(second_checkout, job, *copy_options).wait(PATIENT) == 0, (
            second_checkout.parent / "job.log"
        ).read_text()
    finally:
        for folder in (first_checkout, second_checkout):
            remove_containers(folder)
    assert list_containers(first_checkout) == []
    run = second_checkout / "runs" / "small-001"
    second_log = (second_checkout.parent / "job.log").read_text()
    assert says(second_log, "s3-bucket-unfinished-downloading", f"{prefix}/small-001")
    assert small_job.differences(uninterrupted, run) == []
    assert credential_files + find_credential_files(second_checkout / "runs") == []
    objects = {stored_object.name: store.get(stored_object.name) for stored_object in store.objects()}
    assert b'"done"' in objects["state.json"]
    for text in (
        engine_text,
        log.read_text(),
        second_log,
        *(content.decode(errors="replace") for content in objects.values()),
    ):
        assert SECRET not in text
        assert KEY not in text


def test_data_that_is_in_the_store(cpu_image: str, tmp_path: Path, variables: None) -> None:
    """Fetched in the container, which has the network and the credentials because the job names the address."""
    folder = copy_checkout(tmp_path / "drivetrain")
    log = folder.parent / "job.log"
    rows = "".join(f"{number % 7},{number % 5},{'yes' if number % 2 else 'no'}\n" for number in range(60))
    ObjectStore(parse("s3://bucket/tables")).put("t.csv", f"a,b,y\n{rows}".encode())
    job = tmp_path / "t.yaml"
    data = 'data: {train: "s3://bucket/tables/t.csv", target: y, validation: 0.2}'
    job.write_text(f"name: t\ntask: tabular-classification\n{data}\ntrain: {{epochs: 2}}\n")
    try:
        assert start(folder, job).wait(PATIENT) == 0, log.read_text()
        run = folder / "runs/t-001"
        arguments = [sys.executable, "-c", NO_TORCH, "evaluate", str(run)]
        environment = {**os.environ, "PYTHONPATH": f"{folder}/runtime:{folder}"}
        done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    finally:
        remove_containers(folder)
    assert done.returncode == 0, done.stderr
    assert says(log.read_text(), "network-store-web", "data.train", "s3://bucket/tables/t.csv")
    assert json.loads((run / "state.json").read_text())["status"] == "done"
    assert find_credential_files(folder / "runs") == []


def list_manifests(store: ObjectStore) -> list[str]:
    """The manifests of checkpoints there, oldest first; those of best ones are not among them."""
    return [entry.name for entry in store.objects("checkpoints") if "/step-" in entry.name and "MANIFEST" in entry.name]
