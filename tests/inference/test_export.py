"""ONNX files agree with the network, with free batch size and text length; what is missing is said."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import shutil
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from drivetrain.cli import main
from drivetrain.inference import onnx_file, predictions, thread_limits
from drivetrain.models import saved_model
from drivetrain.models.networks import cnn, cnn_lstm, mlp, tabm, text_encoder
from drivetrain.training.run import Run
from tests.messages import says
from tests.paths import ROOT
from tests.task_cases import CASES, collect_outputs, train_case

pytest.importorskip("onnxscript", reason="the extra `export` is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `export` is not installed")
torch.set_num_threads(1)
BERT = {
    "model_type": "bert",
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
}


@pytest.fixture(autouse=True)
def same_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_limits, "limit_threads", lambda: None)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_case(CASES["texts"], tmp_path_factory.mktemp("export"))


def test_the_service_of_the_page_answers_as_predict_does(
    run: Run, exported_model: tuple[Path, str], tmp_path: Path
) -> None:
    """The code in docs/serving.md, as it stands there."""
    pytest.importorskip("httpx", reason="httpx is not installed")
    testclient = pytest.importorskip("fastapi.testclient", reason="fastapi is not installed")
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "serving.md").read_text(), re.DOTALL)
    (tmp_path / "serve.py").write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODEL", str(exported_model[0]))
        spec = importlib.util.spec_from_file_location("serve", tmp_path / "serve.py")
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "serve", module)
        spec.loader.exec_module(module)
    client = testclient.TestClient(module.app)
    validation_file = run.folder.parent / "held.csv"
    texts = [row["text"] for row in csv.DictReader(validation_file.read_text(encoding="utf-8").splitlines())]
    response = client.post("/predict", json={"texts": texts})
    assert response.status_code == 200
    for name, head in saved_model.load(run.folder).heads.items():
        shares = predictions.compute_probabilities(head, collect_outputs(run)[name])
        for row, share in zip(response.json(), shares, strict=True):
            assert row[name]["prediction"] == head.classes[int(share.argmax())]
            assert row[name]["probability"] == pytest.approx(float(share.max()), abs=1e-5)
    for bad in ({}, {"texts": []}, {"texts": ["  "]}, {"texts": ["x"] * 65}, {"texts": [1]}):
        assert client.post("/predict", json=bad).status_code == 422


def compute_outputs(file: Path, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [slot.name for slot in session.get_outputs()]
    arrays = session.run(None, {s.name: x.numpy() for s, x in zip(session.get_inputs(), inputs, strict=True)})
    return {name: torch.from_numpy(value) for name, value in zip(names, arrays, strict=True)}


@pytest.fixture(scope="module")
def exported_model(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The ONNX file of a copied model folder, and what the command printed."""
    folder, out = tmp_path_factory.mktemp("exported"), StringIO()
    shutil.copytree(run.folder / "model", folder / "model")
    with redirect_stdout(out), pytest.MonkeyPatch.context() as patch:
        patch.setattr(thread_limits, "limit_threads", lambda: None)
        assert main.main(["export", str(folder / "model"), "--output", str(folder / "out" / "net.onnx")]) == 0
    return folder / "out" / "net.onnx", out.getvalue()


def test_the_file_gives_what_validation_computed(run: Run, exported_model: tuple[Path, str]) -> None:
    """Onnxruntime alone, on texts of other lengths and batches of other sizes than those it was made with."""
    file, out = exported_model
    assert says(out, "random-samples-outputs-differ", 1, 5)  # a copied model has no data
    expected, split = collect_outputs(run), run.dataset.validation
    for ids in ([0], [3, 12], list(range(len(split)))):
        outputs = compute_outputs(file, split.gather(np.array(ids)))
        for name in run.dataset.heads:
            torch.testing.assert_close(outputs[name], expected[name][ids], rtol=0, atol=1e-4)
    assert {path.name for path in file.parent.iterdir()} == {"net.onnx", "net.json"}
    description = json.loads(file.with_suffix(".json").read_text())
    assert [row["name"] for row in description["inputs"]] == ["ids", "mask"]
    assert description["inputs"][0] == {"name": "ids", "type": "int64", "shape": ["batch", "length"]}
    assert [row["classes"] for row in description["outputs"]] == [["x", "y", "z"], ["no", "yes"]]
    assert description["preprocessing"] == run.dataset.preprocessing


@pytest.mark.parametrize("name", ["image folders", "image labels", "image numbers", "series", "table", "tabm"])
def test_every_task_is_compared_on_its_own_validation_data(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = train_case(CASES[name], tmp_path)
    file = tmp_path / "net.onnx"
    assert main.main(["export", str(done.folder), "--output", str(file)]) == 0
    assert says(capsys.readouterr().out, "validation-samples-outputs-differ", 1, 5)
    expected, split, ids = collect_outputs(done), done.dataset.validation, np.arange(7)
    outputs = compute_outputs(file, done.dataset.prepare(split.gather(ids), ids, None))
    for (head, values), theirs in zip(expected.items(), outputs.values(), strict=True):
        torch.testing.assert_close(theirs, values[:7], rtol=0, atol=1e-4, msg=head)


def test_the_file_can_return_the_probabilities_of_predict(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    assert main.main(["export", str(run.folder), "--output", str(path), "--probabilities"]) == 0
    split, prepare = run.dataset.validation, run.dataset.prepare
    ids = np.arange(len(split))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = prepare(split.gather(ids), ids, None)
    names = [one.name for one in session.get_inputs()]
    results = session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)})
    described = json.loads(path.with_suffix(".json").read_text())["outputs"]
    for (name, head), result, output in zip(
        saved_model.load(run.folder).heads.items(), results, described, strict=True
    ):
        expected = predictions.compute_probabilities(head, collect_outputs(run)[name])
        torch.testing.assert_close(torch.from_numpy(result), expected, rtol=1e-4, atol=1e-5)
        assert (output["activation"], output["temperature"]) == ("none", 1.0)


def test_data_that_is_gone_leaves_random_samples(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_file, "write", lambda *arguments: arguments[-1].write_bytes(b"x"))
    monkeypatch.setattr(onnx_file, "compute_difference", lambda *arguments: 0.0)
    shutil.copytree(run.folder, tmp_path / "run")
    (tmp_path / "run" / "state.json").write_text(json.dumps({"status": "done", "source": str(tmp_path / "job.yaml")}))
    assert main.main(["export", str(tmp_path / "run")]) == 0
    out, stderr = capsys.readouterr()
    assert "with 1 and 5 random samples" in out
    assert says(stderr, "export-compared-random-samples")
    assert "train.csv" in stderr


TABLE_NETWORK: dict[str, Any] = {
    "numbers": 2,
    "categories": [3, 4],
    "outputs": 2,
    "hidden": [6],
    "edges": [[], [-1.0, 0.0, 2.0]],
    "number_embedding": 3,
}
TABLE: dict[str, Any] = {
    "kind": "table",
    "numeric": [{"name": n, "mean": 0.0, "std": 1.0, "median": 0.0, "missing": False, "edges": []} for n in "xy"],
    "categorical": [{"name": n, "values": v, "missing": False} for n, v in (("p", ["a", "b"]), ("q", [*"abc"]))],
}
NETWORKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "small-cnn": (
        lambda: cnn.build("small-cnn", channels=1, classes=3, image_size=12, width=4, dropout=0.1),
        {"kind": "images", "image_size": 12, "channels": 1},
    ),
    "resnet50": (
        lambda: cnn.build("resnet50", channels=3, classes=3, image_size=40, width=4, stem="large"),
        {"kind": "images", "image_size": 40, "channels": 3},
    ),
    "deep two-way lstm": (
        lambda: cnn_lstm.CnnLstm(channels=3, outputs=2, lstm_hidden=5, lstm_layers=2, bidirectional=True),
        {"kind": "series", "length": 12, "channels": 3},
    ),
    "encoder, cls": (
        lambda: text_encoder.build(config=BERT, outputs={"a": 3, "b": 2}, pooling="cls", dropout=0.1),
        {"kind": "texts", "max_length": 20, "vocabulary": 60},
    ),
    "mlp": (lambda: mlp.Mlp(**TABLE_NETWORK), TABLE),
    "tabm, labels": (
        lambda: tabm.TabM(**TABLE_NETWORK, kind="labels", members=3, embedding=2, dropout=0.1),
        TABLE,
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name == "resnet50" else name for name in NETWORKS]
)
def test_every_built_in_network_exports(name: str, tmp_path: Path) -> None:
    from drivetrain.models import dummy_inputs

    build, preprocessing = NETWORKS[name]
    torch.manual_seed(0)
    module = build()
    with torch.no_grad():  # away from outputs near zero, and from the statistics that BatchNorm starts with
        for name_of, parameter in module.named_parameters():
            parameter.mul_(30 if name_of.startswith(("classifier", "heads")) else 1)
        module.train()(*dummy_inputs.make_inputs(preprocessing, 16, 1))
    module.eval()
    first = dummy_inputs.make_inputs(preprocessing, 3, 0)
    network = onnx_file.FlatOutputs(module, ("a", "b") if name == "encoder, cls" else ("",))
    names = onnx_file.list_input_names(module, len(first)), ["a", "b"] if name == "encoder, cls" else ["output"]
    onnx_file.write(network, first, names, preprocessing.get("max_length"), tmp_path / "n.onnx")
    other_inputs = [dummy_inputs.make_inputs(preprocessing, count, seed) for seed, count in enumerate((1, 2, 7))]
    assert onnx_file.compute_difference(network, tmp_path / "n.onnx", other_inputs) <= 1e-4
    assert max(float(x.detach().abs().max()) for x in network(*other_inputs[2])) > 0.1


class Branches(nn.Module):
    """A network whose way depends on its numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return x if float(x.sum()) > 0 else -x


def test_a_network_that_cannot_be_traced(tmp_path: Path) -> None:
    from drivetrain.errors import CheckpointError

    network = onnx_file.FlatOutputs(Branches(), ("",))
    with pytest.raises(CheckpointError) as error:
        onnx_file.write(network, (torch.randn(3, 2),), (["x"], ["output"]), None, tmp_path / "n.onnx")
    assert "torch.export failed: " in str(error.value)
    assert says(str(error.value), "avoid-branches-depend-tensor")


def test_a_file_that_computes_something_else_is_not_kept(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = onnx_file.write

    def wrong(network: onnx_file.FlatOutputs, *rest: Any) -> None:
        write(network, *rest)
        with torch.no_grad():
            network.network.heads[0].bias += 0.01

    monkeypatch.setattr(onnx_file, "write", wrong)
    assert main.main(["export", str(run.folder), "--output", str(tmp_path / "m.onnx")]) == 4
    assert "m.onnx differ by 0.01" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_names_that_are_not_utf_8(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The library that compares raised a TypeError; and a folder that was moved should have been copied again."""
    name = os.fsdecode(b"r\xe9")
    moved = tmp_path / name
    shutil.copytree(run.folder / "model", moved)
    for line in (["export", str(run.folder), "--output", str(tmp_path / f"{name}.onnx")], ["export", str(moved)]):
        assert main.main(line) == 7
        assert says(capsys.readouterr().err, "has-bytes-that-are-not-utf")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_missing_packages_are_named(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n.startswith("onnx") else find(n))
    assert main.main(["export", str(run.folder)]) == 9
    error = capsys.readouterr().err
    assert says(error, "onnx-onnxscript-onnxruntime-installed")
    assert says(error, "make-setup-model-copied")


def test_a_nan_difference_is_no_agreement(tmp_path: Path) -> None:
    class Nowhere(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.log(x)

    network = onnx_file.FlatOutputs(Nowhere(), ("",))
    onnx_file.write(network, (torch.rand(3, 2) + 1,), (["x"], ["output"]), None, tmp_path / "n.onnx")
    assert onnx_file.compute_difference(network, tmp_path / "n.onnx", [(torch.rand(2, 2) + 1,)]) <= 1e-4
    assert onnx_file.compute_difference(network, tmp_path / "n.onnx", [(-torch.ones(2, 2),)]) == float("inf")
