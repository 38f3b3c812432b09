"""`train --extend`: a finished run goes on in a new folder, with the bits of one run; what cannot go on is refused."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

from drivetrain.cli import main
from drivetrain.supervisor import named_run
from tests.faults import small_job
from tests.messages import says

SHORT, LONG = "train.epochs=6", "train.epochs=14"
STEPS = 8
"""Of an epoch."""
UNFINISHED_COPY = ".small.extension"
"""What the kill of an extension leaves in the folder of the runs."""


def contents(folder: Path) -> dict[str, str]:
    """Every file of a folder with its hash."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def finished_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job of a run that finished after six epochs."""
    job = small_job.write_job(tmp_path_factory.mktemp("finished"))
    small_job.finish(job, "--set", SHORT)
    return job


@pytest.fixture
def job(finished_job: Path, tmp_path: Path) -> Path:
    """A copy of it, to be extended."""
    shutil.copytree(finished_job.parent, tmp_path / "job")
    return tmp_path / "job" / finished_job.name


def extend_command(job: Path, *options: str) -> list[str]:
    return ["train", str(job), "--runs", str(job.parent / "runs"), "--extend", str(first_run(job)), *options]


def first_run(job: Path) -> Path:
    return job.parent / "runs" / "small-001"


def set_options(*values: str) -> list[str]:
    return [word for value in values for word in ("--set", value)]


def read_refusal(job: Path, capsys: pytest.CaptureFixture[str], *options: str, code: int) -> str:
    """What an extension that is refused says; the finished run and its neighbours stay as they are."""
    before = contents(job.parent / "runs")
    assert main.main(extend_command(job, *options)) == code
    assert contents(job.parent / "runs") == before
    return capsys.readouterr().err


def test_killed_in_the_middle_it_ends_with_the_bits_of_one_run(job: Path, tmp_path: Path) -> None:
    before = contents(first_run(job))
    options = ("--extend", str(first_run(job)), *set_options(LONG))
    output = small_job.finish(job, *options, expected=137, FAULT=f"batch:{3 * STEPS}:kill")
    assert small_job.newest_run(job).name == "small-002"
    assert small_job.last_checkpoint(small_job.newest_run(job)).name == "step-70"
    output = small_job.finish(job, *options)
    assert "resumed from step-70" in output
    assert "extend:" not in output
    once = small_job.write_job(tmp_path / "once")
    small_job.finish(once, *set_options(LONG))
    assert small_job.differences(small_job.newest_run(job), small_job.newest_run(once)) == []
    assert contents(first_run(job)) == before
    assert small_job.read_json(small_job.newest_run(job), "extension.json")["run"] == "small-001"


@pytest.mark.nightly
def test_a_run_that_steps_ended_within_an_epoch_trains_its_rest(tmp_path: Path) -> None:
    job, once = small_job.write_job(tmp_path / "job"), small_job.write_job(tmp_path / "once")
    small_job.finish(job, *set_options("train.steps=20"))
    options = (*set_options("train.steps=43"), "--extend", str(first_run(job)))
    small_job.finish(job, *options, expected=137, FAULT="batch:6:kill")
    small_job.finish(job, *options)
    small_job.finish(once, *set_options("train.steps=43"))
    one, two = (
        small_job.last_checkpoint(small_job.newest_run(job)),
        small_job.last_checkpoint(small_job.newest_run(once)),
    )
    for name in ("model", "optimizer", "ema"):
        assert (one / f"{name}.safetensors").read_bytes() == (two / f"{name}.safetensors").read_bytes()
    rows, expected = small_job.read_rows(small_job.newest_run(job)), small_job.read_rows(small_job.newest_run(once))
    extra = [row for row in rows if row not in expected]
    assert [(row["step"], row["epoch"], "lr" in row) for row in extra] == [(20, 2, False)]
    assert [row for row in rows if row not in extra] == expected


def test_a_schedule_with_an_end_is_that_of_the_new_length(tmp_path: Path) -> None:
    """A one-cycle: its rate has come to a ten-thousandth of lr, and goes on in the middle of the longer one."""
    jobs = [
        small_job.write_job(tmp_path / name, schedule="{name: one-cycle, warmup: 0.5}", epochs="2")
        for name in ("job", "once")
    ]
    for job in jobs:
        job.write_text(job.read_text().replace(", patience: 1, factor: 0.5}", ""))
    job, once = jobs
    small_job.finish(job)
    output = small_job.finish(job, "--extend", str(first_run(job)), *set_options("train.epochs=4"))
    assert says(output, "continues-with-longer-schedule", "small-002", "small-001", 2, 16, 4, "one-cycle")
    small_job.finish(once, *set_options("train.epochs=4"))
    rates, expected = (
        [row["lr"] for row in small_job.read_rows(small_job.newest_run(path)) if "lr" in row] for path in jobs
    )
    assert len(rates) == len(expected) == 4 * STEPS
    assert rates[2 * STEPS :] == expected[2 * STEPS :]
    assert rates[: 2 * STEPS] != expected[: 2 * STEPS]


def test_a_schedule_and_a_watched_metric_may_change(job: Path) -> None:
    options = set_options("train.schedule=constant", "train.early_stopping={metric: validation/loss}", "train.epochs=8")
    small_job.finish(job, "--extend", str(first_run(job)), *options, "--set", "train.optimizer.lr=0.002")
    rows = [row for row in small_job.read_rows(small_job.newest_run(job)) if row["step"] > 6 * STEPS and "lr" in row]
    assert {row["lr"] for row in rows} == {0.002}
    assert len(rows) == 2 * STEPS


@pytest.mark.parametrize(
    "options", [pytest.param([SHORT], marks=pytest.mark.nightly), [LONG, "train.early_stopping.patience=1"]]
)
def test_a_run_that_has_nothing_more_to_train_ends_at_once(job: Path, options: list[str]) -> None:
    small_job.finish(job, "--extend", str(first_run(job)), *set_options(*options))
    run = small_job.newest_run(job)
    assert small_job.read_json(run, "result.json")["steps"] == 6 * STEPS
    weights = [folder / "model" / "model.safetensors" for folder in (first_run(job), run)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_what_cannot_be_extended(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = read_refusal(job, capsys, *set_options(LONG, "train.optimizer.weight_decay=0.1", "model.width=5"), code=4)
    assert says(text, "trained-another-job-file", "small-001")
    assert "-  width: 4" in text
    assert "+  width: 5" in text
    assert "+    weight_decay: 0.1" in text
    text = read_refusal(job, capsys, *set_options(LONG), "--plain", code=4)
    assert says(text, "started-without-plain-plan", "small-001")
    # What the message advises must not meet the same refusal: --new with --extend does.
    assert "--new" not in text
    assert says(text, "start-new-training-model", first_run(job))
    state = first_run(job) / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"status": "stopped"}))
    text = read_refusal(job, capsys, *set_options(LONG), code=4)
    assert says(text, "no-finished-run-with-checkpoint", "small-001", "stopped")
    shutil.rmtree(first_run(job) / "checkpoints")
    state.write_text(json.dumps({"status": "done"}))
    text = read_refusal(job, capsys, *set_options(LONG), code=4)
    assert says(text, "no-finished-run-with-checkpoint", "small-001", "done")


@pytest.mark.parametrize("content", [b"[" * 100_000, bytes(range(256))], ids=["nested too deeply", "no text"])
def test_a_run_whose_job_is_no_yaml(job: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (first_run(job) / "job.yaml").write_bytes(content)
    assert "job.yaml: damaged: " in read_refusal(job, capsys, code=4)


def test_checkpoints_that_are_damaged_or_without_an_optimizer(job: Path) -> None:
    newest, *older = sorted(first_run(job).glob("checkpoints/step-*"), key=lambda path: -int(path.name[5:]))
    assert [path.name for path in (newest, *older)] == ["step-48", "step-42"]
    manifest = newest / "MANIFEST.json"
    files = json.loads(manifest.read_text())
    del files["files"]["optimizer.safetensors"]
    manifest.write_text(json.dumps(files))
    output = small_job.finish(job, "--extend", str(first_run(job)), *set_options(LONG), expected=4)
    assert says(output, "checkpoint-does-not-fit", "step-48")
    for checkpoint in (newest, *older):
        (checkpoint / "model.safetensors").write_bytes(b"cut")
    output = small_job.finish(job, "--extend", str(first_run(job)), *set_options(LONG), expected=4)
    assert says(output, "checkpoint-is-damaged-bytes", "step-42", "model.safetensors", 3)


@pytest.mark.nightly
def test_a_damaged_last_checkpoint_is_replaced_by_the_one_before(job: Path, tmp_path: Path) -> None:
    (first_run(job) / "checkpoints" / "step-48" / "model.safetensors").write_bytes(b"cut")
    output = small_job.finish(job, "--extend", str(first_run(job)), *set_options("train.epochs=8"))
    assert says(output, "checkpoint-is-damaged-bytes", "step-48", "model.safetensors", 3)
    assert "resumed from step-42" in output
    once = small_job.write_job(tmp_path / "once")
    small_job.finish(once, *set_options("train.epochs=8"))
    assert small_job.differences(small_job.newest_run(job), small_job.newest_run(once)) == []


def test_changed_data_is_refused_and_a_copy_without_new_steps_is_made_again(job: Path) -> None:
    data = job.parent / "images.npz"
    content = data.read_bytes()
    data.write_bytes(content + b"more")
    output = small_job.finish(job, "--extend", str(first_run(job)), *set_options(LONG), expected=4)
    assert says(output, "continues-data-changed-since", "small-001")
    data.write_bytes(content)
    small_job.finish(job, "--extend", str(first_run(job)), *set_options("train.epochs=7"))
    assert small_job.newest_run(job).name == "small-002"
    assert small_job.read_json(small_job.newest_run(job), "result.json")["steps"] == 7 * STEPS


def test_a_refused_copy_is_in_nobodys_way(job: Path) -> None:
    """Made by an --extend with --new, too, it gives its place to a run of the plain command."""
    data = job.parent / "images.npz"
    content = data.read_bytes()
    data.write_bytes(content + b"more")
    output = small_job.finish(job, "--extend", str(first_run(job)), "--new", *set_options(LONG), expected=4)
    assert says(output, "start-new-run-without-extend")
    assert small_job.newest_run(job).name == "small-002"
    data.write_bytes(content)
    small_job.finish(job, *set_options("train.epochs=1", "train.seed=9"))
    run = small_job.newest_run(job)
    assert (run.name, small_job.read_json(run, "result.json")["steps"]) == ("small-002", STEPS)
    assert not (run / "extension.json").exists()


@pytest.fixture(scope="module")
def extended_job(finished_job: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job of a finished run that is read-only and was extended by a bad epoch, beside a copy that was killed."""
    job = tmp_path_factory.mktemp("extended") / "job" / finished_job.name
    shutil.copytree(finished_job.parent, job.parent)
    for path in (first_run(job), *first_run(job).rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    unfinished_copy = job.parent / "runs" / UNFINISHED_COPY
    (unfinished_copy / "checkpoints" / "step-999").mkdir(parents=True)
    (unfinished_copy / "metrics.jsonl").write_text("half")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(named_run, "RUNS", job.parent / "runs")
        assert [path.name for path in named_run.list_by_age()] == ["small-001"]
    options = set_options("train.epochs=7", "train.optimizer.lr=1.0")
    small_job.finish(job, "--extend", str(first_run(job)), *options)
    return job


def test_a_copy_that_was_killed_is_made_again(extended_job: Path) -> None:
    assert small_job.newest_run(extended_job).name == "small-002"
    assert not (extended_job.parent / "runs" / UNFINISHED_COPY).exists()
    assert not (small_job.newest_run(extended_job) / "checkpoints" / "step-999").exists()


def test_a_finished_run_that_is_read_only_is_extended(extended_job: Path) -> None:
    assert [path for path in small_job.newest_run(extended_job).rglob("*") if not path.stat().st_mode & 0o200] == []


def test_the_best_weights_of_the_finished_run_stay_the_best(extended_job: Path) -> None:
    """If no added epoch is better, the model of the extension is that of the finished run."""
    folders = first_run(extended_job), small_job.newest_run(extended_job)
    before, after = (small_job.read_json(folder, "result.json") for folder in folders)
    assert (before["steps"], after["steps"]) == (48, 56)
    assert after["best"] == before["best"]
    one, two = (safetensors.torch.load_file(folder / "model" / "model.safetensors") for folder in folders)
    assert all(torch.equal(one[name], two[name]) for name in one.keys() | two.keys())


def test_a_full_disk_leaves_nothing(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, calls = shutil.copyfile, []

    def fill_disk(source: Path, to: Path) -> None:
        calls.append(to)
        if len(calls) == 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        copy(source, to)

    monkeypatch.setattr(shutil, "copyfile", fill_disk)
    text = read_refusal(job, capsys, *set_options(LONG), code=7)
    assert says(text, "space-left-device-2", "small-002")
    assert len(calls) == 12
    assert os.listdir(job.parent / "runs") == ["small-001"]


@pytest.mark.nightly
def test_an_extension_is_extended_and_another_unfinished_run_is_named(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = job.parent / "runs"
    small_job.finish(job, "--extend", str(first_run(job)), *set_options("train.epochs=7"))
    assert small_job.read_json(runs / "small-002", "extension.json") == {"run": "small-001", "step": 48, "epoch": 6}
    small_job.finish(job, "--extend", str(runs / "small-002"), *set_options("train.epochs=8"))
    assert small_job.read_json(runs / "small-003", "extension.json") == {"run": "small-002", "step": 56, "epoch": 7}
    state = runs / "small-003" / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"status": "stopped"}))
    text = read_refusal(job, capsys, *set_options("train.epochs=8"), code=4)
    assert says(text, "is-unfinished-and-continues", "small-003", "small-002")


def test_a_run_to_extend_must_exist(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main.main(["launch", "jobs/digits.yaml", "--extend", str(tmp_path / "digits-001")]) == 4
    assert says(capsys.readouterr().err, "there-is-no-such-folder")


@pytest.fixture(scope="module")
def clipped_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four epochs whose job file says clip_norm."""
    job = small_job.write_job(tmp_path_factory.mktemp("clipped"))
    small_job.finish(job, *set_options("train.epochs=4", "train.clip_norm=0.05"))
    return first_run(job)


@pytest.mark.parametrize("resumes", [False, True], ids=["extended", "resumed"])
def test_a_run_ends_with_the_defaults_that_it_began_with(tmp_path: Path, clipped_run: Path, resumes: bool) -> None:
    """The job file does not say clip_norm, whose default was 0.05 when the run began."""
    old_default = ("--set", "train.clip_norm=0.05")
    longer = ("--set", "train.epochs=4")
    job = small_job.write_job(tmp_path)
    if resumes:
        small_job.finish(job, *longer, *old_default, expected=75, FAULT="update:20:term")
    else:
        small_job.finish(job, "--set", "train.epochs=2", *old_default)
    small_job.make_default(first_run(job), "train.clip_norm")
    small_job.finish(job, *longer, *(() if resumes else ("--extend", str(first_run(job)))))
    run = small_job.newest_run(job)
    assert "clip_norm: 0.05" in (run / "job.yaml").read_text()
    assert small_job.differences(clipped_run, run) == []
