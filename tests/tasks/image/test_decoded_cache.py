"""Decoded images: the same pixels, each file opened once, nothing half believed, room given back."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from drivetrain import optimizations
from drivetrain.data.load_data import load
from drivetrain.job.workload import Workload
from drivetrain.job_spec import load_job as job_spec
from drivetrain.models import inspection
from drivetrain.models.build import build
from drivetrain.optimizations import decode_cache
from drivetrain.plan import plan
from drivetrain.tasks.image import decode, image_files
from drivetrain.training import run
from drivetrain.training.assemble import Assembly
from drivetrain.training.evaluation.validation import evaluate
from tests import tiny
from tests.messages import says
from tests.paths import ROOT
from tests.supervisor import tiny_run
from tests.tasks.image.image_cache import COUNT, keep_pixels, list_images, write_images

ALL = np.arange(COUNT, dtype=np.int64)


@pytest.fixture
def files(tmp_path: Path) -> image_files.Files:
    return list_images(write_images(tmp_path))


def record_decoding(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    decoded_paths: list[str] = []
    real = decode.pixels
    monkeypatch.setattr(
        decode, "pixels", lambda path, *arguments: [decoded_paths.append(path), real(path, *arguments)][1]
    )
    return decoded_paths


def test_the_same_pixels_and_each_file_once(
    files: image_files.Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, decoded_paths = files.gather(ALL), record_decoding(monkeypatch)
    cache = keep_pixels(files, tmp_path)
    for ids in (ALL[5:9], ALL[::-1].copy(), np.array([3, 3, 7]), ALL):
        assert torch.equal(cache.gather(ids), expected[torch.from_numpy(ids)])
    assert sorted(decoded_paths) == sorted(files.title(row) for row in range(COUNT))
    decoded_paths.clear()
    assert torch.equal(keep_pixels(files, tmp_path).gather(ALL), expected)
    assert decoded_paths == []


@pytest.mark.parametrize("harm", ["half a row", "a mark before its row", "an empty mark"])
def test_an_incomplete_cache_row_is_decoded_again(
    files: image_files.Files, tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, cache = files.gather(ALL), keep_pixels(files, tmp_path)
    cache.gather(ALL)
    pixels, marks = cache._parts()
    if harm == "half a row":
        pixels[4, pixels.shape[1] // 2 :] = 0
    elif harm == "a mark before its row":
        pixels[4] = 0
    else:
        marks[4] = 0
    decoded_paths = record_decoding(monkeypatch)
    assert torch.equal(keep_pixels(files, tmp_path).gather(ALL), expected)
    assert decoded_paths == [files.title(4)]


@pytest.mark.parametrize("change", ["pixels", "pixels alone", "time", "size", "another file"])
def test_augmented_images_differ(files: image_files.Files, tmp_path: Path, change: str) -> None:
    first_cache, path = keep_pixels(files, tmp_path), Path(files.title(0))
    if change == "pixels":
        Image.new("RGB", (50, 50), "red").save(path)
    elif change == "pixels alone":
        # Another image of the same size and time, as two exports of one moment are.
        before = path.stat()
        Image.new("RGB", (30, 41), "red").save(path)
        with path.open("ab") as file:
            file.write(bytes(before.st_size - path.stat().st_size))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert path.stat().st_size == before.st_size
    elif change == "time":
        os.utime(path, (1, 1))
    elif change == "size":
        files = files.fit_to(16, 3)
    else:
        shutil.copy(path, path.with_name("copy.png"))
        files = list_images(tmp_path / "pictures")
    second_cache = keep_pixels(files, tmp_path)
    assert first_cache.path != second_cache.path
    rows = np.arange(len(files), dtype=np.int64)
    assert torch.equal(second_cache.gather(rows), files.gather(rows))


FILL = """
import sys, time, hashlib
from pathlib import Path
import numpy as np
from tests.tasks.image.image_cache import keep_pixels, list_images
folder = Path(sys.argv[1])
one = keep_pixels(list_images(folder / "pictures"), folder)
for start in range(0, 24, 2):
    one.gather(np.arange(start, start + 2))
    print(start, flush=True)
    time.sleep(float(sys.argv[2]))
print(hashlib.sha256(one.gather(np.arange(24)).numpy().tobytes()).hexdigest())
"""


def start_filling(folder: Path, pause: float) -> subprocess.Popen[str]:
    line = [sys.executable, "-c", FILL, str(folder), str(pause)]
    return subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_killed_while_it_is_filled_and_two_at_once(
    files: image_files.Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_process = start_filling(tmp_path, 0.2)
    assert killed_process.stdout is not None
    assert [killed_process.stdout.readline() for _ in range(4)][-1] == "6\n"
    killed_process.kill()
    killed_process.communicate()
    pair = [start_filling(tmp_path, 0.01) for _ in range(2)]
    ends = [process.communicate()[0].splitlines()[-1] for process in pair]
    expected = files.gather(ALL)
    digest = hashlib.sha256(expected.numpy().tobytes()).hexdigest()
    assert ends == [digest, digest]
    decoded_paths = record_decoding(monkeypatch)
    assert torch.equal(keep_pixels(files, tmp_path).gather(ALL), expected)
    assert decoded_paths == []


def test_least_recently_used_files_are_removed_and_used_ones_stay(files: image_files.Files, tmp_path: Path) -> None:
    old = [keep_pixels(files.fit_to(size, 3), tmp_path) for size in (8, 9, 10)]
    for age, cache in enumerate(old):
        os.utime(cache.path, (age, age))
    for cache in (old[0], old[2]):
        cache.mapped = None
    size = old[2].path.stat().st_size
    new = keep_pixels(
        files.fit_to(11, 3), tmp_path, max_bytes=old[1].path.stat().st_size + size + COUNT * (11 * 11 * 3 + 8)
    )
    remaining = {path.name for path in (tmp_path / "cache").iterdir()}
    assert remaining == {cache.path.name for cache in (old[1], old[2], new)}
    keep_pixels(files.fit_to(12, 3), tmp_path, max_bytes=0)
    assert old[1].path.exists()
    assert not old[2].path.exists()


JOB = """
name: pictures
task: image-classification
data: {train: pictures, validation: 0.25, image_size: 16, augment: {flip: true}}
model: {name: small-cnn, width: 4}
train: {epochs: 3, batch_size: 4}
optimize: {cpu_threads: 1, measure: off}
"""


def assemble_run(folder: Path, on: bool, cache: Path) -> run.Run:
    (folder / "job.yaml").write_text(JOB)
    job, machine = job_spec.load(folder / "job.yaml"), tiny.machine()
    machine = replace(
        machine, storage=replace(machine.storage, cache=str(cache), cache_writable=True, cache_room=1 << 30)
    )
    data = load(job)
    network = build(job, data)
    facts = inspection.inspect_workload(data, network.module)
    others_off = {
        optimization.name: optimization.off
        for optimization in optimizations.every()
        if optimization.name != "decode_cache"
    }
    run_plan = plan.resolve(job, machine, facts, plain=not on, replay=others_off if on else {})
    return Assembly(job, machine, run_plan, folder, data, network, tiny.QuietSignals()).assemble()


def test_losses_and_metrics_are_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path)
    plain, ours = assemble_run(tmp_path, False, tmp_path / "c"), assemble_run(tmp_path, True, tmp_path / "c")
    assert not decode_cache.effective(plain)
    assert decode_cache.effective(ours)
    layouts = [run.step.forward.lay_out(next(run.batches.epoch(0)).inputs)[0].stride() for run in (plain, ours)]
    assert layouts[0] == layouts[1]
    assert tiny.losses(ours, 6) == tiny.losses(plain, 6)
    assert evaluate(ours) == evaluate(plain)
    decoded_paths = record_decoding(monkeypatch)
    tiny.losses(ours, 6)
    evaluate(ours)
    assert decoded_paths == []


def test_without_a_cache_the_run_goes_on_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_images(tmp_path)
    (tmp_path / "file").write_text("")
    training_run = assemble_run(tmp_path, True, tmp_path / "file")
    assert not decode_cache.effective(training_run)
    assert says(capsys.readouterr().out, "decode-cache-cache-used")
    assert tiny.losses(training_run, 2) == tiny.losses(assemble_run(tmp_path, False, tmp_path / "c"), 2)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_from_the_second_epoch_on_no_image_file_is_opened(tmp_path: Path) -> None:
    write_images(tmp_path)
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    trace = tmp_path / "trace"
    line = ["strace", "-f", "-s", "300", "-e", "trace=openat,write", "-o", str(trace), *tiny_run.command(path)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "home")}
    environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
    process = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if "PTRACE" in process.stderr or "ptrace" in process.stderr:
        pytest.skip(f"strace may not trace here: {process.stderr[:200]}")
    assert process.returncode == 0, process.stderr
    rows = json.loads((tmp_path / "runs/pictures-001/plan.json").read_text())["decisions"]
    assert next(row["value"] for row in rows if row["name"] == "decode_cache") is True
    lines = trace.read_text(errors="replace").splitlines()
    first = next(i for i, text in enumerate(lines) if "write(1" in text and "epoch 1/3  validation" in text)
    images = [i for i, text in enumerate(lines) if "openat(" in text and re.search(r"pictures/.*\.(jpg|png)", text)]
    assert len([i for i in images if i < first]) >= 2 * COUNT
    assert [lines[i] for i in images if i > first] == []


PICTURES = Workload(samples=1000, sample_bytes=12288, decoded=False)


@pytest.mark.parametrize(
    ("facts", "epochs", "room", "value", "reason"),
    [
        (None, 3, 1 << 30, True, "decode each image file once, if the pixels fit"),
        (replace(PICTURES, decoded=True), 3, 1 << 30, False, "already in memory"),
        (PICTURES, 3, 1 << 30, True, "1,000 images are decoded once instead of in each of 3 epochs: 12 MiB in "),
        (PICTURES, 1, 1 << 30, False, "in a single epoch no image is decoded twice"),
        (PICTURES, 3, 20 << 20, False, "the pixels take 12 MiB, more than half of the cache space (20 MiB)"),
        (PICTURES, 3, None, False, "more than half of the cache space (unknown)"),
        (replace(PICTURES, samples=100_000), 3, 1 << 40, False, "would be read from disk in every epoch"),
    ],
)
def test_it_is_chosen_where_disk_and_memory_have_room(
    facts: Workload | None, epochs: int, room: int | None, value: bool, reason: str
) -> None:
    machine = tiny.machine()
    machine = replace(
        machine,
        memory=replace(machine.memory, available=1 << 30),
        storage=replace(machine.storage, cache_writable=True, cache_room=room),
    )
    job = tiny.job()
    job = job.model_copy(update={"train": job.train.model_copy(update={"epochs": epochs})})
    choice = decode_cache.choose(job, machine, facts)
    assert choice.value is value
    assert reason in choice.reason
