"""The ensemble for tables: what separate perceptrons with its weights compute, its losses, and that it is a model like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from drivetrain.data.dataset import Head
from drivetrain.data.load_data import load
from drivetrain.errors import SpecError
from drivetrain.job.train import CrossEntropy, Focal
from drivetrain.job_spec import load_job as job_spec
from drivetrain.models import saved_model
from drivetrain.models.build import build as build_model
from drivetrain.models.networks import mlp, tabm
from drivetrain.system import fault_points
from drivetrain.training import losses, train
from tests import tiny
from tests.messages import saying
from tests.task_cases import CASES, train_case

torch.set_num_threads(1)
MEMBERS = 3
TABLE: dict[str, Any] = {
    "numbers": 2,
    "categories": [4],
    "hidden": [6, 5],
    "embedding": 2,
    "dropout": 0.0,
    "edges": [[-1.0, 0.0, 2.0], []],
    "number_embedding": 3,
}
INPUTS = (
    torch.randn(9, 2, generator=torch.Generator().manual_seed(0)),
    torch.arange(9, dtype=torch.int32).unsqueeze(1) % 4,
)


def make_network(kind: Literal["numbers", "labels", "classes"] = "classes", **changes: Any) -> tabm.TabM:
    """An ensemble in float64, whose parameters all differ."""
    torch.manual_seed(0)
    network = tabm.TabM(outputs=2, kind=kind, members=MEMBERS, **TABLE | changes).double()
    assert isinstance(network, tabm.TabM)
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    return network


def make_member(network: tabm.TabM, member: int) -> mlp.Mlp:
    """The perceptron that a member is, with weights of its own that have the factors in them."""
    perceptron = mlp.Mlp(outputs=2, **TABLE).double()
    state = {name: value for name, value in network.state_dict().items() if "embeddings" in name}
    for number, layer in enumerate(network.layers):
        shared = layer[0]
        inputs, outputs, bias = (
            vector.view(MEMBERS, -1)[member] for vector in (shared.input_factors, shared.output_factors, shared.bias)
        )
        state |= {
            f"layers.{number}.0.weight": outputs[:, None] * shared.linear.weight * inputs,
            f"layers.{number}.0.bias": bias,
        }
    head = network.classifier
    state |= {"classifier.weight": head.weight[member].T, "classifier.bias": head.bias.view(MEMBERS, -1)[member]}
    perceptron.load_state_dict(state)
    return perceptron


def run_members(network: tabm.TabM) -> list[Tensor]:
    """The outputs of separate perceptrons, (N, outputs) each."""
    return [make_member(network, member)(INPUTS[0].double(), INPUTS[1]) for member in range(MEMBERS)]


def test_members_are_separate_perceptrons() -> None:
    network = make_network()
    outputs = network(INPUTS[0].double(), INPUTS[1])
    assert outputs.shape == (9, MEMBERS, 2)
    torch.testing.assert_close(outputs, torch.stack(run_members(network), 1), rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_separate_perceptrons() -> None:
    network, members = make_network(), list[mlp.Mlp]()
    (network(INPUTS[0].double(), INPUTS[1]).sin().sum() / MEMBERS).backward()
    for member in range(MEMBERS):
        members.append(make_member(network, member))
        (members[-1](INPUTS[0].double(), INPUTS[1]).sin().sum() / MEMBERS).backward()

    def expect(parameter: Tensor, gradients: list[Tensor]) -> None:
        torch.testing.assert_close(parameter.grad, torch.stack(gradients).sum(0), rtol=1e-5, atol=1e-5)

    for name, parameter in network.named_parameters():
        if "embeddings" in name:
            expect(parameter, [member.get_parameter(name).grad for member in members])  # type: ignore[misc]
    for number, layer in enumerate(network.layers):
        shared = layer[0]
        inputs, outputs = (vector.view(MEMBERS, -1) for vector in (shared.input_factors, shared.output_factors))
        by_member = [member.layers[number][0] for member in members]
        expanded = [one.weight.grad for one in by_member]
        expect(shared.linear.weight, [outputs[m][:, None] * expanded[m] * inputs[m] for m in range(MEMBERS)])
        for vector, gradients in (
            (shared.input_factors, [(outputs[m] @ (expanded[m] * shared.linear.weight)) for m in range(MEMBERS)]),
            (shared.output_factors, [(expanded[m] * shared.linear.weight) @ inputs[m] for m in range(MEMBERS)]),
            (shared.bias, [one.bias.grad for one in by_member]),
        ):
            torch.testing.assert_close(vector.grad, torch.cat(gradients), rtol=1e-5, atol=1e-5)
    expected_head = torch.stack([member.classifier.weight.grad.T for member in members])
    torch.testing.assert_close(network.classifier.weight.grad, expected_head, rtol=1e-5, atol=1e-5)


def test_members_begin_with_the_same_weights_and_random_signs() -> None:
    torch.manual_seed(0)
    network = tabm.TabM(outputs=2, kind="classes", members=64, **TABLE)
    first, *other_members = (layer[0] for layer in network.layers)
    plain, embedded, category = first.input_factors.view(64, -1).split([1, 3, 2], dim=1)
    signs = torch.stack([plain[:, 0], embedded[:, 0], category[:, 0]])
    assert signs.abs().unique().tolist() == [1.0]
    assert len(signs.unique(dim=1).T) == 8
    assert (embedded == embedded[:, :1]).all()
    assert (category == category[:, :1]).all()
    assert all((factors == 1).all() for factors in (first.output_factors, other_members[0].input_factors))
    assert len(network.classifier.weight.unique(dim=0)) == 64


@pytest.mark.parametrize(
    ("kind", "probabilities"), [("classes", lambda x: x.softmax(-1)), ("labels", torch.sigmoid), ("numbers", None)]
)
def test_an_evaluation_gives_the_mean_of_probabilities_or_numbers(
    kind: Literal["numbers", "labels", "classes"], probabilities: Any
) -> None:
    network = make_network(kind).eval()
    average, members = network(INPUTS[0].double(), INPUTS[1]), torch.stack(run_members(network))
    if probabilities is None:
        torch.testing.assert_close(average, members.mean(0))
    else:
        torch.testing.assert_close(probabilities(average), probabilities(members).mean(0))


def test_sure_members_give_finite_outputs() -> None:
    outputs = torch.tensor([[[3e4, -3e4], [-3e4, 3e4]]]).half()
    for kind in ("classes", "labels"):
        assert tabm.average_members(outputs, kind).tolist() == [[pytest.approx(-np.log(2) * (kind == "classes"))] * 2]


LOSSES: dict[str, Any] = {
    "weighted classes": (CrossEntropy(name="cross-entropy", label_smoothing=0.1), torch.arange(9) % 2, {"a": 3.0}),
    "mixed classes": (None, torch.rand(9, 2).softmax(1), "none"),
    "focal": (Focal(name="focal"), torch.arange(9) % 2, "none"),
    "labels": (None, (torch.rand(9, 2) > 0.5).float(), {"b": 5.0}),
    "numbers": (None, torch.randn(9, 2), "none"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_is_the_mean_of_the_losses_of_members(name: str) -> None:
    spec, targets, weighting = LOSSES[name]
    classes = () if name == "numbers" else ("a", "b")
    head = Head("", classes=classes, several=name == "labels", columns=("x", "y") if not classes else ())
    objective = losses.build_objective(spec, {"": head}, {"": targets}, weighting)
    outputs, denominators = torch.randn(9, MEMBERS, 2), objective.denominators({"": targets})
    by_member = [objective(outputs[:, member], {"": targets}, denominators) for member in range(MEMBERS)]
    torch.testing.assert_close(objective(outputs, {"": targets}, denominators), torch.stack(by_member).mean())


def write(
    folder: Path, model: str = "tabm", target: str = "kind", task: str = "tabular-classification", epochs: int = 1
) -> Path:
    folder.mkdir(exist_ok=True)
    CASES["table"].files(folder)
    ignored = [name for name in ("kind", "price", "weight", "red", "big") if name not in target]
    path = folder / "job.yaml"
    path.write_text(
        f"name: t\ntask: {task}\ndata: {{train: train.csv, validation: held.csv, target: {target}, ignore: {ignored}}}\n"
        f"model: {model}\ntrain: {{epochs: {epochs}, batch_size: 16}}\noptimize: {{cpu_threads: 1, measure: off}}\n"
    )
    return path


def test_the_short_form_is_the_default(tmp_path: Path) -> None:
    short, whole = (job_spec.load(write(tmp_path, model)) for model in ("tabm", "{name: tabm, members: 8}"))
    assert short.model == whole.model  # type: ignore[attr-defined]


@pytest.mark.parametrize(("model", "name"), [("{members: 4}", "mlp"), ("{name: linear, members: 4}", "linear")])
def test_members_of_other_networks_are_refused(tmp_path: Path, model: str, name: str) -> None:
    with pytest.raises(SpecError, check=saying("has-no-effect-on-network", "model.members", f"model.name: {name}")):
        job_spec.load(write(tmp_path, model))


@pytest.mark.parametrize(
    ("target", "task"),
    [
        ("[red, big]", "tabular-classification"),
        ("[price, weight]", "tabular-regression"),
    ],
)
def test_labels_and_numbers_are_trained_and_predicted(tmp_path: Path, target: str, task: str) -> None:
    run = tiny.assemble_plain_run(job_spec.load(write(tmp_path, "{name: tabm, members: 3}", target, task)), tmp_path)
    train.train(run)
    stored = saved_model.load(tmp_path / "model").network
    inputs = run.dataset.validation.gather(np.arange(7))
    torch.testing.assert_close(stored(*inputs), run.model.eval()(*inputs), rtol=1e-4, atol=1e-5)


def test_killed_and_resumed_the_bits_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    evaluations: list[str] = []

    def kill(name: str, *_: object) -> None:
        evaluations.append(name)
        if name == "record evaluation" and evaluations.count(name) == 2:
            raise Killed

    def train_in(folder: Path) -> None:
        train.train(tiny.assemble_plain_run(job_spec.load(write(folder, "{name: tabm, members: 3}", epochs=3)), folder))

    train_in(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(fault_points, "listener", kill)
        with pytest.raises(Killed):
            train_in(tmp_path / "killed")
    train_in(tmp_path / "killed")
    for name in ("model/model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes(), name


def test_other_targets_get_new_outputs_of_their_kind(tmp_path: Path) -> None:
    train_case(CASES["tabm"], tmp_path)
    (tmp_path / "run").rename(tmp_path / "first")
    job = job_spec.load(write(tmp_path, f"{{from: {tmp_path / 'first'}}}", "[red, big]"))
    network = build_model(job, load(job))
    assert network.random_names == {"classifier.weight", "classifier.bias"}
    assert network.arguments["kind"] == "labels"


def test_factors_and_biases_do_not_decay(tmp_path: Path) -> None:
    run = tiny.assemble_plain_run(job_spec.load(write(tmp_path)), tmp_path)
    decayed = {id(p) for group in run.optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    names = {name for name, p in run.model.named_parameters() if id(p) not in decayed}
    assert {name.rpartition(".")[2] for name in names if "embeddings" not in name} == {
        "bias",
        "input_factors",
        "output_factors",
    }
