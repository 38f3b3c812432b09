"""What changes around a run while it trains: the clock, the GPU, the compiler, the number of loader workers, the network."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from drivetrain.errors import DeviceError
from drivetrain.system import torch_errors
from tests import tiny
from tests.faults import small_job
from tests.messages import get_message, says
from tests.newest_checkpoint import load_latest
from tests.system_calls import needs_strace

SHORT = {"epochs": "4"}


@pytest.fixture(scope="module")
def undisturbed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and in the file `peak` beside its job the KiB that its supervisor needed at most."""
    job = small_job.write_job(tmp_path_factory.mktemp("calm"), **SHORT)
    process = small_job.start(job)
    peak = 0
    while process.poll() is None:
        with contextlib.suppress(OSError, IndexError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = max(peak, int(status.partition("VmHWM:")[2].split()[0]))
        time.sleep(0.05)
    assert process.returncode == 0
    (job.parent / "peak").write_text(str(peak))
    return small_job.newest_run(job)


@pytest.mark.parametrize("way", [pytest.param("ahead", marks=pytest.mark.nightly), "behind"])
def test_a_clock_that_jumps_by_a_day(tmp_path: Path, undisturbed_run: Path, way: str) -> None:
    """Saves by time and the time limit go by the clock that nobody can set; bits by none."""
    job = small_job.write_job(tmp_path, **SHORT)
    text = small_job.finish(job, "--set", "train.max_time=1h", FAULT=f"step:10:{way}")
    assert f"fault: {way}" in text
    assert small_job.differences(undisturbed_run, small_job.newest_run(job)) == []
    result = small_job.read_json(small_job.newest_run(job), "result.json")
    assert 0 < result["seconds"] < 600
    assert all(0 <= value < 600 for value in result["phases"].values())


def test_a_gpu_that_is_lost(tmp_path: Path, undisturbed_run: Path) -> None:
    """Exit 9 with the last checkpoint as it was, and no other attempt by ourselves."""
    job = small_job.write_job(tmp_path, **SHORT)
    text = small_job.finish(job, expected=9, FAULT="step:20:device")
    assert says(text, "gpu-failed-cuda-error")
    assert says(text, "last-checkpoint-untouched")
    assert text.count(get_message("after-kill-same-command")) == 1
    loaded, passed = load_latest(small_job.newest_run(job) / "checkpoints")
    assert loaded is not None
    assert (loaded.state["counters"]["step"], passed) == (14, [])
    small_job.finish(job)
    assert small_job.differences(undisturbed_run, small_job.newest_run(job)) == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA error: device-side assert triggered\nmore", DeviceError),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", DeviceError),
        ("CUDA out of memory. Tried to allocate 2 GiB", RuntimeError),
        ("CUDA driver error: unknown error", DeviceError),
        ("shapes do not fit", RuntimeError),
    ],
)
def test_errors_that_mean_a_lost_gpu(text: str, kind: type[Exception]) -> None:
    assert type(torch_errors.translate_error(RuntimeError(text))) is kind


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling cublasCreate(handle)",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA driver error: out of memory",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.",
        "GET was unable to find an engine to execute this computation",
    ],
)
def test_memory_that_runs_out_outside_of_torchs_allocator_is_memory(text: str) -> None:
    error = RuntimeError(text)
    assert torch_errors.is_out_of_memory(error)
    assert torch_errors.translate_error(error) is error


@pytest.mark.nightly
def test_another_number_of_workers_after_a_stop(tmp_path: Path, undisturbed_run: Path) -> None:
    """None, then two, then one: prefetched batches and the workers' own draws are nothing that must be kept."""
    job = small_job.write_job(tmp_path, **SHORT)
    small_job.finish(job, expected=75, FAULT="update:10:term")
    small_job.finish(job, "--set", "optimize.loader_workers=2", expected=75, FAULT="update:8:term")
    small_job.finish(job, "--set", "optimize.loader_workers=1")
    assert small_job.differences(undisturbed_run, small_job.newest_run(job)) == []
    assert small_job.ledger_faults(job) == []
    plan = small_job.read_json(small_job.newest_run(job), "plan.json")
    assert next(row for row in plan["decisions"] if row["name"] == "loader_workers")["value"] == 1


def test_a_failing_compiler_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said once, and from there on the same bits as without it."""
    plain_losses = tiny.losses(tiny.assemble_run(tmp_path, tiny.job()), 3)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    torch._dynamo.reset()
    # Not by monkeypatch: what it takes back in this configuration is gone afterwards.
    with torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}):
        compiled_run = tiny.assemble_run(tmp_path, tiny.job(), settings={"compile": True})
        assert tiny.losses(compiled_run, 3) == plain_losses
    events = (tmp_path / "events.jsonl").read_text()
    assert events.count(get_message("compile-failed-training-continues")) == 1
    assert compiled_run.step.forward.compile_error


@pytest.mark.nightly
@needs_strace
def test_no_connection_is_tried(tmp_path: Path) -> None:
    """With local data neither a whole run nor a resumed one asks the network for anything."""
    job = small_job.write_job(tmp_path, **SHORT)
    for number, fault in enumerate(("update:10:term", "")):
        record = tmp_path / f"calls-{number}"
        watched = ["strace", "-f", "-qq", "-e", "trace=connect,sendto", "--seccomp-bpf", "-o", str(record)]
        environment = {**small_job.make_environment(job), "FAULT": fault}
        done = subprocess.run(
            [*watched, *small_job.command(job)],
            cwd=small_job.ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == (75 if fault else 0), done.stdout + done.stderr
        assert [line for line in record.read_text().splitlines() if "AF_INET" in line] == []


@pytest.mark.nightly
def test_a_stopped_process_does_not_count_as_starved(tmp_path: Path, undisturbed_run: Path) -> None:
    """Frozen as `docker pause` freezes it, and thawed: it goes on where it was."""
    job = small_job.write_job(tmp_path, **SHORT)
    process = small_job.start(job)
    log = job.parent / "job.log"
    while "epoch 1/4" not in log.read_text():
        assert process.poll() is None, log.read_text()
        time.sleep(0.01)
    pids = small_job.processes(job.parent)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            subprocess.run(["kill", f"-{number.value}", str(pid)], check=False)
        time.sleep(1)
    assert process.wait(timeout=120) == 0, log.read_text()
    assert small_job.differences(undisturbed_run, small_job.newest_run(job)) == []


def test_the_supervisor_is_light(undisturbed_run: Path) -> None:
    """What stays beside the trainer the whole time: no torch, and less than 60 MB at its peak."""
    peak = int((undisturbed_run.parents[1] / "peak").read_text())
    print(f"supervisor: {peak / 1024:.1f} MiB at most")
    assert 0 < peak * 1024 < 60e6
