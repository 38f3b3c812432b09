"""A run is stopped, its data is touched in every way that a user might, and it is resumed: same result or refused."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import drivetrain
from drivetrain.cli import main
from drivetrain.data.scales import Scale
from drivetrain.data.tables import features
from drivetrain.errors import CheckpointError, DataError, SpecError, Stopped
from drivetrain.job_spec import load_job as job_spec
from drivetrain.library import embedded_run
from drivetrain.plan import plan
from drivetrain.system.files import read_json, write_json
from drivetrain.system.signals import Interrupted
from drivetrain.training import loop, recorded_inputs, train
from drivetrain.training.phase_timer import PhaseTimer
from drivetrain.training.run import Run
from drivetrain.tuning import assembly
from tests import reports, tiny
from tests.messages import saying, says
from tests.task_cases import image_folders
from tests.training.changed_inputs import (
    FIRST,
    INITIAL_FILES,
    JOBS,
    PRETRAINED,
    WAYS,
    edit_text,
    reverse_rows,
    touch_files,
)

STOPPED_AFTER = 2
"""Steps of the first attempt."""


class StoppingSignals(tiny.QuietSignals):
    """A signal that comes after some steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.run = steps, None

    def check(self) -> None:
        if self.run is not None and self.run.counters.step >= self.steps and not self.depth:
            raise Interrupted("stopped by the test")


def attempt(folder: Path, steps: int = 10**9) -> None:
    """Train the job of a folder in its run folder, from the last checkpoint to the end or to a step."""
    job, run_folder = job_spec.load(folder / "job.yaml"), folder / "run"
    signals = StoppingSignals(steps)
    run: Run = assembly.assemble_run(run_folder, job, signals, PhaseTimer(), is_measured=True)
    signals.run = run  # type: ignore[assignment]
    train.train(run)


@pytest.fixture(scope="module")
def start_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Stop a run of each job; the folder `end` has its end without any change."""
    torch.set_num_threads(1)
    folders: dict[str, Path] = {}

    def start(name: str) -> Path:
        if name not in folders:
            folder = folders[name] = tmp_path_factory.mktemp("case")
            (folder / "run").mkdir()
            JOBS[name].files(folder)
            write(folder, JOBS[name].text)
            with pytest.raises(Stopped):
                attempt(folder, STOPPED_AFTER)
            shutil.copytree(folder, folder / "end")
            write(folder / "end", JOBS[name].text)
            attempt(folder / "end")
        return folders[name]

    return start


def copy_stopped_run(folder: Path, name: str) -> Path:
    """Copy a stopped run with its files next to its end."""
    copied_folder = folder / name
    shutil.copytree(
        folder,
        copied_folder,
        ignore=lambda parent, names: [n for n in names if parent == str(folder) and n not in INITIAL_FILES],
    )
    return copied_folder


def write(folder: Path, text: str) -> None:
    """The job, and the records that a supervisor begins a run with."""
    (folder / "job.yaml").write_text(
        f"name: t\n{text.replace('PLACE', str(folder))}"
        "train: {batch_size: 8, epochs: 3, solve_heads: false}\noptimize: {cpu_threads: 1}\n"
    )
    job, machine = job_spec.load(folder / "job.yaml"), tiny.machine()
    write_json(folder / "run" / "hardware.json", machine.to_json())
    write_json(folder / "run" / "plan.json", plan.resolve(job, machine, plain=True).to_json())


def outcome(folder: Path) -> str:
    """Return `the same` if the run ends as without a change, or the error that refused it."""
    try:
        attempt(folder)
    except (SpecError, DataError, CheckpointError) as error:
        return str(error)
    model, end = folder / "run" / "model", folder.parent / "end" / "run" / "model"
    assert all(
        (model / name).read_bytes() == (end / name).read_bytes() for name in ("model.safetensors", "config.json")
    )
    return "the same"


def list_cases() -> Iterator[object]:
    """Every way with every other kind of data that has it, and with all of them at night; each is resumed unchanged."""
    for way, how in WAYS.items():
        for number, job in enumerate(how.jobs):
            is_usual = way == "copied" or number % 2 == 0
            yield pytest.param(way, job, id=f"{way}-{job}", marks=[] if is_usual else [pytest.mark.nightly])


@pytest.mark.parametrize(("way", "job"), [*list_cases()])
def test_the_same_result_or_refused(start_run: Callable[[str], Path], way: str, job: str) -> None:
    folder = copy_stopped_run(start_run(job), way)
    write(folder, JOBS[job].text)
    WAYS[way].change(folder)
    verdict = outcome(folder)
    if WAYS[way].named_file:
        assert WAYS[way].named_file in verdict
    else:
        assert verdict == "the same"


def test_an_image_that_is_edited_while_a_run_trains_is_reported(
    start_run: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_stopped_run(start_run("image folders"), "edited")
    write(folder, JOBS["image folders"].text)
    image, fit = folder / FIRST, loop.fit

    def fit_and_edit(*arguments: Any) -> str:
        reason = fit(*arguments)
        image.write_bytes(image.read_bytes() + b"\0")
        return reason

    monkeypatch.setattr(loop, "fit", fit_and_edit)
    attempt(folder)
    assert says((folder / "run" / "events.jsonl").read_text(), "data-changed-trained-both", image)


FITTED = {
    "image folders": (
        "drivetrain.tasks.image.data.channel_statistics",
        lambda raw, low, high: ([0.3] * 3, [0.1] * 3),
    ),
    "texts": ("drivetrain.data.text.tokenizer.learn", None),
    "series": ("drivetrain.tasks.series.windows.fit_scales", lambda values: [Scale(0.5, 2.0)] * 2),
    "table numbers": ("drivetrain.data.target_columns.build_head", lambda *arguments: None),
    "table": (
        "drivetrain.data.tables.features._fit_number",
        lambda name, values, bins: features.Number(name, Scale(1.0, 9.0), 0.0, True),
    ),
}
"""What another processor or another version of a library may find otherwise in the same data."""


@pytest.mark.parametrize("job", FITTED)
def test_preprocessing_is_that_of_the_start(
    start_run: Callable[[str], Path], job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_stopped_run(start_run(job), "fitted")
    write(folder, JOBS[job].text)
    name, other = FITTED[job]
    monkeypatch.setattr(name, other)
    assert outcome(folder) == "the same"


@pytest.mark.parametrize("text", [None, '{"files": {', "[]", "{}"])
def test_a_damaged_record_is_refused(tmp_path: Path, text: str | None) -> None:
    fitted = {"heads": [{"name": "", "classes": ["a", "b"]}], "preprocessing": {}}
    digest = recorded_inputs._hash_fitted(fitted)
    path = tmp_path / "inputs.json"
    write_json(path, {"files": {}, "arrays": {}, "digest": digest, **fitted})
    records = recorded_inputs.read_records(tmp_path)
    assert records.heads[""].classes == ("a", "b")
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    with pytest.raises(CheckpointError, match=r"/inputs\.json is missing, damaged or edited"):
        recorded_inputs.read_records(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"files": {"data.train": 1}},
        {"files": {"data.train": {"folder": True}}},
        {"files": {"data.train": {"folder": "x", "rows": {}}}},
        {"files": {"data.train": {"folder": True, "rows": {"a.csv": 1}}}},
    ],
    ids=["no object", "no rows", "a text for a truth value", "a number for a row"],
)
def test_a_record_that_holds_something_else_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    fitted = {"heads": [{"name": ""}], "preprocessing": {}}
    digest = recorded_inputs._hash_fitted(fitted)
    write_json(tmp_path / "inputs.json", {"arrays": {}, "digest": digest} | fitted | wrong)
    with pytest.raises(CheckpointError, check=saying("missing-damaged-edited", "/inputs.json")):
        recorded_inputs.read_records(tmp_path)


def test_an_edit_of_the_preprocessing_is_refused(start_run: Callable[[str], Path]) -> None:
    folder = copy_stopped_run(start_run("table"), "edited")
    write(folder, JOBS["table"].text)
    path = folder / "run" / "inputs.json"
    record = read_json(path)
    record["preprocessing"]["numeric"][0]["mean"] = 1e3
    write_json(path, record)
    assert says(outcome(folder), "missing-damaged-edited", "inputs.json")


def test_unchanged_files_are_not_read_again(
    tmp_path: Path, start_run: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    image_folders(tmp_path)
    write(tmp_path, JOBS["image folders"].text)
    with pytest.raises(Stopped):
        attempt(tmp_path, STOPPED_AFTER)
    monkeypatch.setattr("drivetrain.data.fingerprint.hash_file", None)
    attempt(tmp_path)
    assert (tmp_path / "run" / "model").exists()


def test_another_pretrained_network_under_the_same_name(tmp_path: Path) -> None:
    reports.write_reports(tmp_path, size=60)
    saved = reports.save_encoder(tmp_path)
    (tmp_path / "run").mkdir()
    write(
        tmp_path,
        "task: text-classification\ndata: {train: reports.csv, validation: 0.2, text: descripcion, labels: modo}\n"
        "model: {source: transformers, name: saved}\n",
    )
    with pytest.raises(Stopped):
        attempt(tmp_path, STOPPED_AFTER)
    for name, change in PRETRAINED.items():
        before = (saved / name).read_bytes()
        change(saved / name)
        with pytest.raises(CheckpointError) as caught:
            attempt(tmp_path)
        assert f"saved/{name} was changed (model.name)" in caught.value.given
        (saved / name).write_bytes(before)
    attempt(tmp_path)
    assert (tmp_path / "run" / "model").exists()


def test_an_evaluation_of_other_data_is_refused(
    start_run: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy_stopped_run(start_run("split table") / "end", "evaluated")
    job_file = folder / "run" / "job.yaml"
    shutil.copy(folder / "job.yaml", job_file)
    write_json(folder / "run" / "state.json", {"status": "done", "source": str(folder / "job.yaml")})
    touch_files(folder)
    assert main.main(["evaluate", str(folder / "run")]) == 0
    # The same classes, categories and scales, and other rows in the validation part.
    edit_text("train.csv", reverse_rows)(folder)
    assert main.main(["evaluate", str(folder / "run")]) == 3
    errors = capsys.readouterr().err
    assert says(errors, "data-changed-since-training-2")
    assert says(errors, "has-other-content-2", "train.csv", "data.train")


def test_arrays_of_a_program(tmp_path: Path) -> None:
    def train(stop: bool, shift: float = 0.0) -> embedded_run.Result:
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        x = torch.rand(80, 2, generator=torch.Generator().manual_seed(0))
        y = (x[:, 0] > 0.5).long()
        x[7] += shift

        def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            loss_calls.append(1)
            if stop and len(loss_calls) > 12:
                os.kill(os.getpid(), signal.SIGINT)
            return torch.nn.functional.cross_entropy(outputs, targets)

        loss_calls: list[int] = []
        return drivetrain.train(
            network,
            (x, y),
            (x[:20], y[:20]),
            loss=loss,
            runs=tmp_path,
            epochs=4,
            batch_size=8,
            optimize={"cpu_threads": 1, "measure": "off"},
        )

    with pytest.raises(Stopped):
        train(stop=True)
    with pytest.raises(CheckpointError) as caught:
        train(stop=False, shift=1e-3)
    assert says(caught.value.given, "training-samples-values")
    assert "new=True" in caught.value.action
    assert train(stop=False).metrics
