"""Nothing is saved in vain, and nothing that is needed is missing.

Every item of a checkpoint is taken away in turn: the run refuses to go on from it. Every item is changed in turn: the
run ends otherwise than it would have, in weights, optimizer, average, state, metrics, events or its end.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain.errors import CheckpointError, NumericsError
from drivetrain.job.train import Fp16
from drivetrain.tracking.metrics_log import MetricsLog
from drivetrain.training import loop, run
from drivetrain.training.checkpoints import checkpoint, run_state
from drivetrain.training.nonfinite import Scaler
from drivetrain.training.saver import Saver
from tests import tiny
from tests.newest_checkpoint import load_latest
from tests.training.hooked_run import SilentProgress

TIMES = {"counters.seconds"}
"""Not part of the promise: how long a run took differs from run to run."""


@dataclass(frozen=True)
class Scenario:
    """A job, what goes wrong in it, and the step of the checkpoint that it goes on from."""

    train: str
    spoil: Callable[[run.Run], None]
    step: int


def do_nothing(tiny_run: run.Run) -> None:
    """Nothing goes wrong."""


def nan_inputs(tiny_run: run.Run) -> None:
    """Steps 5 to 7 get inputs that are not finite: two before the checkpoint, one after it."""
    bad_steps = {5, 6, 7}

    def hook(module: torch.nn.Module, inputs: Any) -> Any:
        number = tiny_run.counters.step + 1
        if module.training and number in bad_steps:
            bad_steps.discard(number)
            return (inputs[0] * float("nan"),)
        return None

    tiny_run.model.register_forward_pre_hook(hook)


def use_scaler(tiny_run: run.Run) -> None:
    """The scaler of fp16, for which steps that are not finite are ordinary."""
    tiny_run.step.updater.scaler = Scaler(Fp16(growth_interval=3))
    nan_inputs(tiny_run)


CALM = "ema: 0.5, schedule: {name: plateau, patience: 0}, early_stopping: {metric: validation/accuracy, patience: 3}"
SCENARIOS = {
    "training": Scenario(f"{CALM}, optimizer: {{name: adamw, amsgrad: true}}", do_nothing, 6),
    "momentum": Scenario("optimizer: {name: sgd, lr: 0.01}", do_nothing, 6),
    "stalled": Scenario(f"{CALM}, optimizer: {{name: sgd, lr: 1e-12}}", do_nothing, 6),
    "at the end": Scenario(CALM, do_nothing, 12),
    "bad numbers": Scenario("ema: 0.5", nan_inputs, 6),
    "scaler": Scenario("optimizer: {name: sgd, lr: 0.01}", use_scaler, 6),
    "scaler that grows": Scenario("optimizer: {name: sgd, lr: 0.01}", use_scaler, 9),
}


@dataclass
class End:
    """Everything that a run left."""

    tensors: dict[str, dict[str, torch.Tensor]]
    plain: dict[str, Any]

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, End)
        pairs = [(values, other.tensors[group]) for group, values in self.tensors.items()]
        return self.plain == other.plain and all(
            one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one) for one, two in pairs
        )


def train(folder: Path, scenario: Scenario, *, keep: bool = False) -> End:
    """Train from the folder's last checkpoint, or from the start with a checkpoint after every step."""
    folder.mkdir(exist_ok=True)
    tiny_run = tiny.assemble_run(folder, tiny.job(train=scenario.train, model="dropout: 0.2"))
    loaded, _ = load_latest(tiny_run.checkpoints)
    scenario.spoil(tiny_run)
    if loaded:
        run_state.restore(tiny_run, loaded)
    tiny_run.metrics = MetricsLog(folder, after=tiny_run.counters.step, epoch=tiny_run.counters.epoch)
    saver = Saver(tiny_run)
    saver.kind, saver.interval = "steps", 1 if keep else 10**9
    if keep:
        saver._write_and_prune = lambda snapshot: checkpoint.save(  # type: ignore[method-assign]
            tiny_run.checkpoints, snapshot.name, snapshot.tensors, snapshot.state
        )
    if not loaded:
        saver.save_final()
    try:
        reason = loop.fit(tiny_run, saver, SilentProgress())  # type: ignore[arg-type]
        if keep:
            saver.save_final()
    except NumericsError as error:
        reason = str(error)
    finally:
        tiny_run.metrics.close()
    return End(_tensors(tiny_run), _describe_end(tiny_run, reason))


def _tensors(tiny_run: run.Run) -> dict[str, dict[str, torch.Tensor]]:
    tensors = {
        "model": dict(tiny_run.model.state_dict()),
        "optimizer": run_state.collect_optimizer_tensors(tiny_run.model, tiny_run.optimizer),
    }
    return tensors | ({"ema": dict(tiny_run.ema.average)} if tiny_run.ema else {})


def _describe_end(tiny_run: run.Run, reason: str) -> dict[str, Any]:
    state = json.loads(json.dumps(run_state.collect_state(tiny_run)))
    del state["counters"]["seconds"]
    events = tiny_run.folder / "events.jsonl"
    texts = [json.loads(line)["text"] for line in events.read_text().splitlines()] if events.exists() else []
    return {
        "state": state,
        "reason": reason,
        "metrics": tiny_run.folder.joinpath("metrics.jsonl").read_text(),
        "events": texts,
    }


@pytest.fixture(scope="module", autouse=True)
def no_waiting_for_disks() -> Iterator[None]:
    """Power losses are not what is tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="module")
def undisturbed_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of runs with a checkpoint after every step, by scenario."""
    folders = {}
    for name, scenario in SCENARIOS.items():
        folders[name] = tmp_path_factory.mktemp("calm")
        train(folders[name], scenario, keep=True)
    return folders


def resume_changed(
    undisturbed_folders: Path,
    folder: Path,
    scenario: Scenario,
    mutate: Callable[[dict[str, Any], dict[str, Any]], None],
) -> End:
    """Go on from the scenario's checkpoint after `mutate(state, tensors)` has changed it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copy(undisturbed_folders / "metrics.jsonl", folder)
    loaded = checkpoint.load(undisturbed_folders / "checkpoints" / f"step-{scenario.step}")
    state, tensors = copy.deepcopy(loaded.state), {stem: dict(group) for stem, group in loaded.tensors.items()}
    mutate(state, tensors)
    checkpoint.save(folder / "checkpoints", loaded.path.name, tensors, state)
    return train(folder, scenario)


def leaves(tree: dict[str, Any], parents: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where every value of a tree of plain data is."""
    for key, value in tree.items():
        if isinstance(value, dict) and value and key != "last":  # the last evaluation is one thing
            yield from leaves(value, (*parents, key))
        else:
            yield (*parents, key)


def items(path: Path) -> list[tuple[str, ...]]:
    """Every item of a checkpoint: `state` and a place, or a group and a tensor's name."""
    loaded = checkpoint.load(path)
    entries = [("state", *keys) for keys in leaves(loaded.state)]
    return entries + [(stem, name) for stem, group in loaded.tensors.items() for name in group]


def at(state: dict[str, Any], tensors: dict[str, Any], item: tuple[str, ...]) -> tuple[dict[str, Any], str]:
    """The dictionary that holds an item, and its key there."""
    holder: dict[str, Any] = {"state": state, **tensors}
    for key in item[:-1]:
        holder = holder[key]
    return holder, item[-1]


def remove_item(item: tuple[str, ...]) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    def mutate(state: dict[str, Any], tensors: dict[str, Any]) -> None:
        holder, key = at(state, tensors, item)
        del holder[key]

    return mutate


CHANGED: dict[tuple[str, ...], Any] = {
    ("state", "micro_batch"): 4,
    ("state", "last"): {"validation/accuracy": 0.0},
    ("state", "numerics", "skip"): [[1, 3], [2, 1]],
    ("state", "numerics", "bad"): [],
    ("state", "numerics", "ids"): [0],
    ("state", "numerics", "scaler_skips"): 19,
    ("state", "scaler", "good"): 1,
    ("state", "numerics", "recent"): [1.0],
    ("state", "watch", "stopping", "metric"): "validation/loss",
    ("state", "watch", "plateau", "metric"): "validation/accuracy",
    ("state", "watch", "best", "metric"): "validation/loss",
    ("state", "counters", "batch"): 1,
}
"""What an item is changed to where one more would be no other value, or no possible one."""


def change_item(item: tuple[str, ...]) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    def mutate(state: dict[str, Any], tensors: dict[str, Any]) -> None:
        holder, key = at(state, tensors, item)
        holder[key] = CHANGED[item] if item in CHANGED else holder[key] + ("x" if isinstance(holder[key], str) else 1)

    return mutate


@pytest.mark.parametrize("name", SCENARIOS)
def test_without_faults_it_ends_the_same(tmp_path: Path, undisturbed_folders: dict[str, Path], name: str) -> None:
    """Without this the two tests below would prove nothing."""
    uninterrupted = train(tmp_path / "whole", SCENARIOS[name])
    resumed_end = resume_changed(
        undisturbed_folders[name], tmp_path / "again", SCENARIOS[name], lambda state, tensors: None
    )
    if name == "bad numbers":  # an uninterrupted run without saves goes back to its start, a resumed one to step 6
        uninterrupted = resume_changed(
            undisturbed_folders[name], tmp_path / "once more", SCENARIOS[name], lambda state, tensors: None
        )
    resumed_end.plain.pop("events"), uninterrupted.plain.pop("events")
    assert resumed_end == uninterrupted


LONG = ("bad numbers", "at the end", "momentum", "stalled", "scaler that grows")
"""At night: what they save, the others save, too, or take long to go on from."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name in LONG else name for name in SCENARIOS]
)
def test_without_any_one_item_it_refuses(tmp_path: Path, undisturbed_folders: dict[str, Path], name: str) -> None:
    scenario = SCENARIOS[name]
    accepted = []
    entries = items(undisturbed_folders[name] / "checkpoints" / f"step-{scenario.step}")
    for item in entries:
        try:
            resume_changed(undisturbed_folders[name], tmp_path / "x", scenario, remove_item(item))
            accepted.append(item)
        except CheckpointError:
            continue
    assert len(entries) > 50
    assert not accepted


@pytest.mark.nightly
def test_every_item_matters(tmp_path: Path, undisturbed_folders: dict[str, Path]) -> None:
    """An item that could hold anything without being noticed need not be saved."""
    tried: set[tuple[str, ...]] = set()
    noticed: set[tuple[str, ...]] = set()
    for name, scenario in SCENARIOS.items():
        usual = resume_changed(undisturbed_folders[name], tmp_path / "usual", scenario, lambda state, tensors: None)
        loaded = checkpoint.load(undisturbed_folders[name] / "checkpoints" / f"step-{scenario.step}")
        for item in items(loaded.path):
            holder, key = at(loaded.state, loaded.tensors, item)
            empty = item not in CHANGED and isinstance(holder[key], dict | None)
            if item in noticed or empty or ".".join(item[1:]) in TIMES:
                continue
            tried.add(item)
            try:
                if resume_changed(undisturbed_folders[name], tmp_path / "x", scenario, change_item(item)) != usual:
                    noticed.add(item)
            except CheckpointError:
                noticed.add(item)
    assert len(tried) > 100
    assert sorted(tried - noticed) == []
