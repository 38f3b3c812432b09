"""A job that starts from an earlier run, or from a file of weights: the same outputs before its first step."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from drivetrain.data.load_data import load
from drivetrain.errors import SpecError
from drivetrain.job_spec import load_job as job_spec
from drivetrain.models.build import BuiltModel, build
from drivetrain.training import recorded_inputs
from tests.edited_model import write_config
from tests.messages import begins_with, saying, says_only
from tests.models.followed_weights import FIRST, compute_outputs, follow, rename_classes
from tests.task_cases import CASES, Case, collect_outputs, train_case
from tests.tiny import assemble_plain_run


@pytest.fixture(scope="module", params=CASES)
def first_run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Case, dict[str, torch.Tensor]]:
    folder, case = tmp_path_factory.mktemp("first"), CASES[request.param]
    return folder, case, collect_outputs(train_case(case, folder, steps=10))


def test_every_task_starts_with_the_outputs_of_the_earlier_run(
    first_run: tuple[Path, Case, dict[str, torch.Tensor]],
) -> None:
    folder, case, trained_outputs = first_run
    job = follow(folder, case)
    model = build(job, load(job))
    initial_outputs = compute_outputs(job, model)
    assert initial_outputs.keys() == trained_outputs.keys()
    for name, values in trained_outputs.items():
        torch.testing.assert_close(initial_outputs[name], values, rtol=1e-5, atol=1e-6)
    assert model.notes == [f"starts from {folder / FIRST / 'model'}, all {len(model.module.state_dict())} tensors"]


def test_the_random_start_differs(first_run: tuple[Path, Case, dict[str, torch.Tensor]]) -> None:
    folder, _, before = first_run
    job = job_spec.load(folder / "job.yaml")
    now = compute_outputs(job, build(job, load(job)))
    assert any(not torch.allclose(now[name], values, rtol=1e-3, atol=1e-5) for name, values in before.items())


def list_equal_tensors(first_model: BuiltModel, second_model: BuiltModel) -> list[str]:
    """The names of the tensors that both have with the same values."""
    ours, theirs = first_model.module.state_dict(), second_model.module.state_dict()
    return [name for name, value in ours.items() if name in theirs and torch.equal(value, theirs[name])]


def test_other_classes_get_a_new_classifier_even_of_the_same_shape(tmp_path: Path) -> None:
    case = CASES["image arrays"]
    train_case(case, tmp_path)
    unchanged_job = follow(tmp_path, case)
    unchanged_model = build(unchanged_job, load(unchanged_job))
    rename_classes(tmp_path)
    job = follow(tmp_path, case)
    model = build(job, load(job))
    new_tensors = set(model.module.state_dict()) - set(list_equal_tensors(model, unchanged_model))
    assert new_tensors == {"classifier.weight", "classifier.bias"}
    assert says_only(
        model.notes[1],
        "initialized-anew-since-classes",
        tmp_path / FIRST / "model",
        "classifier.bias",
        "classifier.weight",
    )


def test_only_the_head_with_other_classes_is_new(tmp_path: Path) -> None:
    case = CASES["texts"]
    train_case(case, tmp_path)
    unchanged_job = follow(tmp_path, case)
    unchanged_model = build(unchanged_job, load(unchanged_job))
    for part in ("train", "held"):
        path = tmp_path / f"{part}.csv"
        path.write_text(path.read_text().replace(",x,", ",w,"))
    job = follow(tmp_path, case)
    model = build(job, load(job))
    new_tensors = set(model.module.state_dict()) - set(list_equal_tensors(model, unchanged_model))
    assert new_tensors == {"heads.0.weight", "heads.0.bias"}
    assert begins_with(model.notes[1], "initialized-anew-since-classes-differ", tmp_path / FIRST / "model")


def test_other_values_are_scaled_as_in_the_earlier_run(tmp_path: Path) -> None:
    case = CASES["series numbers"]
    before = train_case(case, tmp_path).dataset
    for part in ("train", "held"):
        with np.load(tmp_path / f"{part}.npz") as data:
            x, y = data["x"], data["y"]
        np.savez(tmp_path / f"{part}.npz", x=x * 3, y=y * 5)
    now, alone = load(follow(tmp_path, case)), load(job_spec.load(tmp_path / "job.yaml"))
    assert now.heads == before.heads != alone.heads
    assert list(now.preprocessing["mean"]) == list(before.preprocessing["mean"])
    assert list(now.preprocessing["mean"]) != list(alone.preprocessing["mean"])


def test_heads_in_another_order_keep_their_weights(tmp_path: Path) -> None:
    case = CASES["texts"]
    before = collect_outputs(train_case(case, tmp_path, steps=10))
    job = follow(tmp_path, case, f"{{from: {FIRST}}}", ("{kind: 0.7, urgent: 0.3}", "{urgent: 0.3, kind: 0.7}"))
    now = compute_outputs(job, build(job, load(job)))
    for name, values in before.items():
        torch.testing.assert_close(now[name], values, rtol=1e-5, atol=1e-6)


def test_a_larger_image_keeps_the_stem(tmp_path: Path) -> None:
    case = CASES["image arrays"]
    train_case(case, tmp_path)
    config = json.loads((tmp_path / FIRST / "model" / "config.json").read_text())
    assert (config["arguments"]["stem"], config["arguments"]["image_size"]) == ("auto", 8)
    job = follow(tmp_path, case, f"{{from: {FIRST}}}", ("train.npz, ", "train.npz, image_size: 128, "))
    model = build(job, load(job))
    assert (model.arguments["stem"], model.arguments["image_size"]) == ("small", 128)
    assert model.notes == [f"starts from {tmp_path / FIRST / 'model'}, all {len(model.module.state_dict())} tensors"]


def test_a_folder_whose_stem_does_not_fit_its_size_is_refused(tmp_path: Path) -> None:
    case = CASES["image arrays"]
    train_case(case, tmp_path)
    model = tmp_path / FIRST / "model"
    config = (model / "config.json").read_text()
    write_config(model, json.loads(config.replace('"image_size": 8', '"image_size": 200')))
    for change in ((), (("train.npz, ", "train.npz, image_size: 8, "),)):
        job = follow(tmp_path, case, f"{{from: {FIRST}}}", *change)
        with pytest.raises(SpecError, check=saying("does-not-fit-network")):  # a stem of 7x7, and weights of one of 3x3
            build(job, load(job))


WRONG = {
    "missing": ("nowhere", "does not exist"),
    "a file": (f"{FIRST}/model/model.safetensors", "is a file"),
    "unfinished": ("unfinished", "has no trained model: the run is stopped"),
    "another task": (FIRST, "was trained on series, and image-classification trains on images"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_folder_that_cannot_be_used(tmp_path: Path, case: str) -> None:
    name, message = WRONG[case]
    train_case(CASES["series"], tmp_path)
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "state.json").write_text('{"status": "stopped"}')
    spec = "series" if case != "another task" else "image arrays"
    if case == "another task":
        CASES[spec].files(tmp_path)
    with pytest.raises(SpecError) as refused:
        follow(tmp_path, CASES[spec], f"{{from: {name}}}")
    problem = refused.value.problems[0]
    assert re.search(r"next.yaml:\d+:\d+$", problem.place)
    assert problem.key == "model.from"
    assert message in problem.given
    assert problem.possible
    assert problem.action


EDITS = {
    "another network": ('"lstm_hidden": 6', '"lstm_hidden": 7'),
    "another argument": ('"lstm_hidden": 6', '"hidden": 6'),
    "another builder": ('"builder": "series"', '"builder": "nothing"'),
}


@pytest.mark.parametrize("damage", ["truncated", "no config", "another network", "another argument", "another builder"])
def test_a_damaged_model_is_refused(tmp_path: Path, damage: str) -> None:
    case = CASES["series"]
    train_case(case, tmp_path)
    model = tmp_path / FIRST / "model"
    if damage == "truncated":
        weights = (model / "model.safetensors").read_bytes()
        (model / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    elif damage == "no config":
        (model / "config.json").write_text("{}")
    else:
        text, (before, after) = (model / "config.json").read_text(), EDITS[damage]
        assert before in text
        write_config(model, json.loads(text.replace(before, after)))

    def start() -> None:
        job = follow(tmp_path, case)
        build(job, load(job))

    with pytest.raises(SpecError, match=r"model\.from"):
        start()


def test_a_file_of_weights(tmp_path: Path) -> None:
    case = CASES["series"]
    before = collect_outputs(train_case(case, tmp_path))
    shutil.copy(tmp_path / FIRST / "model" / "model.safetensors", tmp_path / "w.safetensors")
    spec = "{cnn_channels: [4], lstm_hidden: 6, bidirectional: true, weights: w.safetensors}"
    job = follow(tmp_path, case, spec)
    torch.testing.assert_close(compute_outputs(job, build(job, load(job)))[""], before[""], rtol=1e-5, atol=1e-6)
    wider = follow(tmp_path, case, spec.replace("6", "8"))
    with pytest.raises(SpecError, match=r"model\.weights: .* does not fit the network: lstm"):
        build(wider, load(wider))
    for name, message in (("job.yaml", "is not a .safetensors file"), (FIRST, "is a folder")):
        other = follow(tmp_path, case, spec.replace("w.safetensors", name))
        with pytest.raises(SpecError, match=message):
            build(other, load(other))


def test_freezing_random_weights_is_told_and_freezing_trained_ones_is_not(tmp_path: Path) -> None:
    case = CASES["series"]
    train_case(case, tmp_path)
    random_job = follow(tmp_path, case, "{cnn_channels: [4], freeze: {names: [convolutions]}}")
    assert "random weights" in build(random_job, load(random_job)).notes[0]
    later_job = follow(tmp_path, case, f"{{from: {FIRST}, freeze: {{names: [convolutions]}}}}")
    model = build(later_job, load(later_job))
    assert len(model.notes) == 1
    assert {name for name, p in model.module.named_parameters() if not p.requires_grad} == {
        "convolutions.0.weight",
        "convolutions.0.bias",
    }


def test_a_resumed_run_notices_another_start(tmp_path: Path) -> None:
    """The weights that a run starts from are among its recorded inputs."""
    case = CASES["series"]
    train_case(case, tmp_path)
    job = follow(tmp_path, case)
    run_folder = tmp_path / "next"
    run_folder.mkdir()
    run = assemble_plain_run(job, run_folder)
    recorded_inputs.record_inputs(run, print, resumes=False)
    records = recorded_inputs.read_records(run_folder)
    assert records
    reloaded_dataset = recorded_inputs.load_unchanged(job, run_folder, records, SpecError)
    assert reloaded_dataset.heads == run.dataset.heads
    weights = tmp_path / FIRST / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"1234")
    with pytest.raises(SpecError, match=r"model\.safetensors .*model\.name"):
        recorded_inputs.load_unchanged(job, run_folder, records, SpecError)
