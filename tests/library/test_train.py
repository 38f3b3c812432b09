"""Training from Python: results, the run folder, stopping and going on, mistakes, and parts that are used alone."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import drivetrain
from drivetrain.errors import CheckpointError, DataError, SpecError, Stopped
from drivetrain.hardware.detect import detect
from drivetrain.hardware.facts import Libraries
from drivetrain.job.job import CLASS_METRICS
from drivetrain.library import embedded_run
from drivetrain.models import saved_model
from drivetrain.plan.plan import load
from drivetrain.tuning import assembly
from tests.faults import small_job
from tests.messages import ends_with, saying, says_only
from tests.paths import IMPORTS, ROOT
from tests.supervisor.circle_training import InterruptingPoints, build_network, have_same_bits, make_circle, no_report

__all__ = ["no_report"]

torch.set_num_threads(1)


def train(folder: Path, model: nn.Module | None = None, data: Any = None, **settings: Any) -> embedded_run.Result:
    """A training of a second or less."""
    defaults: dict[str, Any] = {
        "epochs": 3,
        "batch_size": 16,
        "optimizer": {"lr": 1e-2},
        "optimize": {"cpu_threads": 1, "measure": "off"},
    }
    return drivetrain.train(
        model or build_network(), data or make_circle(120), make_circle(40, seed=1), runs=folder, **defaults | settings
    )


def test_max_time_counts_what_is_measured_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure_slowly(search: Any, decide: Any) -> Any:
        time.sleep(3.1)
        return search

    monkeypatch.setattr(assembly, "measure_plan", measure_slowly)
    with pytest.raises(Stopped):
        train(tmp_path, max_time="3s")


def test_a_result_and_its_run_folder(tmp_path: Path) -> None:
    model = build_network()
    result = train(
        tmp_path, model, name="circle", names=["outside", "inside"], ema=0.9, checkpoint={"best": "validation/accuracy"}
    )
    assert result.folder == tmp_path / "circle-001"
    assert {path.name for path in result.folder.iterdir()} >= {
        "job.yaml",
        "hardware.json",
        "plan.json",
        "metrics.jsonl",
        "telemetry.jsonl",
        "checkpoints",
        "model",
        "result.json",
        "state.json",
    }
    assert result.model is model
    assert model.training
    model.eval()
    stored_weights = safetensors.torch.load_file(result.folder / "model" / "model.safetensors")
    assert all(torch.equal(value, stored_weights[name]) for name, value in model.state_dict().items())
    points, kinds = make_circle(40, seed=1).tensors
    accuracy = float((model(points).argmax(dim=1) == kinds).float().mean())
    assert (result.metric, result.best) == ("validation/accuracy", pytest.approx(accuracy))  # type: ignore[comparison-overlap]
    assert set(result.metrics) == {
        f"validation/{name}" for name in (*CLASS_METRICS, "auc", "average_precision", "kappa")
    }
    assert result.stopped == "all 3 epochs trained"
    state = json.loads((result.folder / "state.json").read_text())
    assert (state["status"], state["exit_code"], state["source"]) == ("done", 0, __file__)
    assert train(tmp_path, name="circle").folder == tmp_path / "circle-002"


def test_process_settings_that_need_a_restart_are_noted_in_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = Libraries(iomp5="/lib/libiomp5.so", tcmalloc="/lib/libtcmalloc.so")
    machine = replace(detect(tmp_path), libraries=libraries)
    monkeypatch.setattr(embedded_run, "detect", lambda runs: machine)
    result = train(tmp_path, epochs=1, optimize={"cpu_threads": 1, "allocator": "tcmalloc"})
    rows = {row.name: row for row in load(result.folder / "plan.json").decisions}
    for name, library in (("openmp_runtime", "iomp5"), ("allocator", "tcmalloc")):
        assert (rows[name].value, rows[name].source, rows[name].effect) == ("off", "process", "exact")
        assert says_only(rows[name].reason, "must-set-before-process", library)
    effective_rows = json.loads((result.folder / "plan.json").read_text())["seen"]
    assert all(row["same"] for name, row in effective_rows.items() if name != "libraries")


def test_the_process_is_left_as_it_was_found(tmp_path: Path) -> None:
    torch.use_deterministic_algorithms(False)
    torch.set_flush_denormal(False)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    model = build_network(seed=5)
    torch.manual_seed(5)
    random.seed(5)
    train(tmp_path, model, InterruptingPoints(), epochs=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert random.random() == random.Random(5).random()
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()
    assert float(torch.full((1,), 1e-40) * 1.0) != 0
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.softmax(dim=1) - nn.functional.one_hot(targets, 2)).pow(2).sum(dim=1)


def test_stopped_by_ctrl_c_and_resumed_to_the_same_weights(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"loss": squared_error, "names": ["a", "b"], "checkpoint": {"every": "2 steps"}}
    uninterrupted = train(tmp_path / "whole", data=InterruptingPoints(), **settings)
    with pytest.raises(Stopped) as raised:
        train(tmp_path / "parts", data=InterruptingPoints(stop_at=200), **settings)
    assert raised.value.given.startswith("stopped by SIGINT (Ctrl-C) after step ")
    assert says_only(raised.value.action, "call-again-same-name", "drivetrain.train")
    folder = tmp_path / "parts" / "library-001"
    assert json.loads((folder / "state.json").read_text())["status"] == "stopped"
    resumed = train(tmp_path / "parts", build_network(seed=9), data=InterruptingPoints(), **settings)
    assert resumed.folder == folder
    assert resumed.best == uninterrupted.best
    expected_weights, resumed_weights = uninterrupted.model.state_dict(), resumed.model.state_dict()
    assert all(torch.equal(expected_weights[name], resumed_weights[name]) for name in expected_weights)


def test_an_unfinished_run_with_another_setting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        train(tmp_path, data=InterruptingPoints(stop_at=200), names=["a", "b"])
    with pytest.raises(CheckpointError) as raised:
        train(tmp_path, data=InterruptingPoints(), names=["a", "b"], epochs=4)
    assert "+  epochs: 4" in raised.value.given
    assert says_only(raised.value.action, "undo-change-start-new")
    assert train(tmp_path, data=InterruptingPoints(), names=["a", "b"], epochs=1, new=True).folder.name == "library-002"


def test_a_run_ends_with_the_defaults_that_it_began_with(tmp_path: Path) -> None:
    """The program does not say clip_norm, whose default was 0.05 when the run began."""
    settings: dict[str, Any] = {"names": ["a", "b"], "checkpoint": {"every": "2 steps"}}
    expected = train(tmp_path / "whole", data=InterruptingPoints(), clip_norm=0.05, **settings)
    with pytest.raises(Stopped):
        train(tmp_path / "parts", data=InterruptingPoints(stop_at=200), clip_norm=0.05, **settings)
    small_job.make_default(tmp_path / "parts" / "library-001", "train.clip_norm")
    assert have_same_bits(train(tmp_path / "parts", data=InterruptingPoints(), **settings), expected)


def test_training_in_a_thread_hears_no_signals_and_works(tmp_path: Path) -> None:
    results: list[embedded_run.Result] = []
    thread = threading.Thread(target=lambda: results.append(train(tmp_path, epochs=1)))
    thread.start()
    thread.join()
    assert results[0].stopped == "1 epoch trained"


def test_a_part_that_was_frozen_by_hand_does_not_move(tmp_path: Path) -> None:
    model = build_network()
    first = model[0].requires_grad_(False).weight.clone()
    result = train(tmp_path, model, epochs=1)
    assert torch.equal(result.model[0].weight, first)


def mean(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.mean()


MISTAKES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "an unknown setting": ({"epoch": 3}, SpecError, "epoch: unknown key\n  possible: known keys: epochs, "),
    "a wrong value": ({"epochs": 0}, SpecError, "epochs: is 0\n  possible: a number >= 1"),
    "an unknown optimizer": ({"optimizer": "adamv"}, SpecError, "optimizer: is 'adamv'"),
    "an unknown loss": (
        {"loss": "hubert"},
        SpecError,
        "loss: is 'hubert'\n  possible: one of cross-entropy, focal, bce,",
    ),
    "a loss that does not fit": ({"loss": "mse"}, SpecError, "train.loss: is mse\n  possible: the targets are classes"),
    "a metric that is not there": (
        {"checkpoint": {"best": "validation/r2"}},
        SpecError,
        "checkpoint.best: is validation/r2",
    ),
    "a bad name": ({"name": "a b"}, SpecError, "name: is 'a b'"),
    "an unknown optimization": ({"optimize": {"threads": 1}}, SpecError, "optimize.threads: unknown key"),
    "threads that are not there": ({"optimize": {"cpu_threads": 999}}, SpecError, "optimize.cpu_threads: is 999"),
    "no module": ({"model": print}, SpecError, "model is builtin_function_or_method\n  possible: a torch.nn.Module"),
    "another width": (
        {"model": nn.Linear(3, 2)},
        SpecError,
        "the model, called with inputs of shape (2, 2), raised RuntimeError: mat1 and mat2 shapes cannot be multiplied",
    ),
    "too few outputs": ({"model": nn.Linear(2, 1)}, SpecError, "the model gives shape (2, 1) for 2 samples"),
    "a loss of another shape": (
        {"loss": lambda outputs, targets: outputs},
        SpecError,
        "loss gives shape (12, 2) for 12 samples\n  possible: one term per sample",
    ),
    "data without targets": ({"data": (torch.zeros(3, 2),)}, DataError, "train_data: is a tuple of 1"),
    "no data": ({"data": [1]}, DataError, "train_data: sample 0 is an int"),
    "class weights": ({"loss": mean, "class_weights": "balanced"}, SpecError, "class_weights: is 'balanced'"),
}


@pytest.mark.parametrize(("settings", "kind", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_and_its_message(
    settings: dict[str, Any], kind: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(kind) as raised:
        train(tmp_path, **settings)
    text = str(raised.value)
    assert message in text
    if kind is SpecError:
        assert text.startswith("test_train.py:")


def test_a_model_of_a_program_cannot_be_rebuilt_without_it(tmp_path: Path) -> None:
    result = train(tmp_path, epochs=1)
    with pytest.raises(CheckpointError, check=saying("passed-python-program-program")):
        saved_model.load(result.folder)


def test_facts_and_plan_alone_load_no_torch() -> None:
    code = (
        "import sys, drivetrain; facts = drivetrain.facts_here(); "
        "plan = drivetrain.plan_for('jobs/digits.yaml', hardware='tests/machines/t4.json'); "
        "print(facts.cpu.budget, plan.value('precision'), plan.image); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1:] == ["fp16", "legacy"]


def test_the_monitor_alone(tmp_path: Path) -> None:
    with drivetrain.Monitor(tmp_path, interval=0.01) as monitor:
        torch.zeros(1000)
    sample = monitor.latest()
    assert sample is not None
    assert sample["process_memory"] == monitor.history()[-1]["process_memory"]
    assert (tmp_path / "telemetry.jsonl").read_text().count("\n") == len(monitor.history())


def test_an_unknown_attribute_is_no_attribute() -> None:
    with pytest.raises(AttributeError, check=saying("module-has-no-attribute", "drivetrain", "trian")):
        drivetrain.trian  # noqa: B018


def test_the_example_script_trains(tmp_path: Path) -> None:
    one = min(os.sched_getaffinity(0))
    done = subprocess.run(
        [sys.executable, str(ROOT / "jobs" / "own_model" / "library.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": IMPORTS},
        preexec_fn=lambda: os.sched_setaffinity(0, {one}),
    )
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert float(last.split()[0]) >= 0.95
    assert ends_with(last, "everything-else-is-in", "runs/circle-001")
    assert (tmp_path / "runs" / "circle-001" / "report.html").exists()


def test_the_plan_is_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A notebook that trains again and again does not print a table each time."""
    train(tmp_path, name="notebook")
    assert " settings (" in capsys.readouterr().out
    train(tmp_path, name="notebook")
    output = capsys.readouterr().out
    assert " settings (" not in output
    assert "plan for notebook (python): unchanged from" in output


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGHUP"])
def test_a_notice_of_a_scheduler_stops_it(tmp_path: Path, name: str) -> None:
    signal.signal(signal.Signals[name], signal.SIG_DFL)
    with pytest.raises(Stopped, match=f"stopped by {name} "):
        train(tmp_path, on_step=lambda info: signal.raise_signal(signal.Signals[name]))
    assert signal.getsignal(signal.Signals[name]) is signal.SIG_DFL
    assert train(tmp_path).folder.name == "library-001"


def test_signals_that_the_program_ignores_or_handles_are_its_own(tmp_path: Path) -> None:
    numbers: list[int] = []
    ours = {
        signal.SIGHUP: signal.SIG_IGN,
        signal.SIGINT: signal.SIG_IGN,
        signal.SIGUSR1: lambda number, frame: numbers.append(number),
    }
    before = {number: signal.signal(number, handler) for number, handler in ours.items()}  # type: ignore[arg-type]
    try:
        train(tmp_path, epochs=1, on_epoch=lambda info: [signal.raise_signal(number) for number in ours])
        assert {number: signal.getsignal(number) for number in ours} == ours
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert numbers == [signal.SIGUSR1]


def test_a_lost_output_does_not_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    lost_output = os.fdopen(write_end, "w")
    monkeypatch.setattr(sys, "stdout", lost_output)
    assert train(tmp_path, epochs=1, on_epoch=lambda info: print(info.epoch, flush=True)).best is not None
    assert sys.stdout is lost_output
    with open(os.devnull, "w") as nowhere, lost_output:
        os.dup2(nowhere.fileno(), lost_output.fileno())


def test_a_loop_that_passes_over_failures_ends_with_a_stop(tmp_path: Path) -> None:
    """Ctrl-C stopped one training, and the loop began the next."""
    names = []

    def loop() -> None:
        for name in ("one", "two"):
            names.append(name)
            with contextlib.suppress(Exception):
                train(tmp_path, name=name, on_step=lambda info: signal.raise_signal(signal.SIGINT))

    with pytest.raises(Stopped):
        loop()
    assert names == ["one"]


def test_a_callback_that_passes_over_everything_does_not_prevent_a_stop(tmp_path: Path) -> None:
    def passes(info: object) -> None:
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Stopped, check=saying("stopped-sigterm-after-step", 1)):
        train(tmp_path, on_step=passes)


def test_arrays_that_run_backward(tmp_path: Path) -> None:
    """torch has no negative strides."""
    inputs, targets = (tensor.numpy() for tensor in make_circle(120).tensors)
    backward = train(tmp_path, data=(inputs[::-1], targets[::-1]), epochs=1)
    copied_result = train(tmp_path, data=(inputs[::-1].copy(), targets[::-1].copy()), epochs=1, new=True)
    assert have_same_bits(backward, copied_result)
