"""Pretrained encoders from Hugging Face folders are trained, frozen and reloaded; unusable ones are refused."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from drivetrain.cli.main import main
from drivetrain.data import load_data
from drivetrain.data.dataset import InputRecord
from drivetrain.data.load_data import load
from drivetrain.errors import DataError, SpecError
from drivetrain.models import build, saved_model
from drivetrain.models.builders import BUILDERS
from drivetrain.models.networks.text_encoder import TextNetwork
from drivetrain.pretrained import folder as pretrained
from drivetrain.pretrained import hub_client
from drivetrain.training import batch_inputs, run
from tests import reports, tiny
from tests.messages import omits, saying, says, says_only
from tests.task_cases import Case, collect_outputs, train_case

MODEL = "{source: transformers, name: saved}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job's folder with reports and a small pretrained BERT."""
    reports.write_reports(tmp_path)
    reports.save_encoder(tmp_path)
    return tmp_path


def assemble_run(folder: Path, model: str = MODEL, data: str = "") -> run.Run:
    return tiny.assemble_plain_run(reports.job(folder, model=model, data=data), folder)


def encoder(training_run: run.Run) -> dict[str, torch.Tensor]:
    assert isinstance(training_run.model, TextNetwork)
    return training_run.model.encoder.state_dict()


def weights(path: Path) -> dict[str, torch.Tensor]:
    return {name: w for name, w in safetensors.torch.load_file(path).items() if not name.startswith("pooler.")}


def have_same_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_pretrained_encoder_starts_with_its_weights(folder: Path) -> None:
    assert have_same_weights(encoder(assemble_run(folder)), weights(folder / "saved" / "model.safetensors"))


def test_it_trains_freezes_and_reloads(folder: Path) -> None:
    training_run = assemble_run(folder, "{source: transformers, name: saved, freeze: {embeddings: true, layers: 1}}")
    before = weights(folder / "saved" / "model.safetensors")
    training_run.train_mode()
    training_run.rates.set(training_run.counters, training_run.best_metric.factor())
    for batch in training_run.batches.epoch(0):
        training_run.step(batch_inputs.preprocess(training_run, batch, 0))
    after = encoder(training_run)
    unchanged = {name for name in before if torch.equal(before[name], after[name])}
    assert unchanged == {name for name in before if name.startswith(("embeddings.", "encoder.layer.0."))}
    reloaded = BUILDERS["texts"](**json.loads(json.dumps(training_run.built_model.arguments)))
    reloaded.load_state_dict(training_run.model.state_dict())
    inputs = training_run.dataset.validation.gather(np.arange(4))
    for name, outputs in reloaded.eval()(*inputs).items():
        assert torch.equal(outputs, training_run.model.eval()(*inputs)[name])


def test_the_model_folder_alone_is_enough(tmp_path: Path) -> None:
    """Copied elsewhere, without the pretrained folder, it computes the validation outputs."""

    def files(folder: Path) -> None:
        reports.write_reports(folder).rename(folder / "train.csv")
        reports.write_reports(folder, 40, seed=1).rename(folder / "held.csv")
        reports.save_encoder(folder)

    spec = "task: text-classification\ndata: {train: train.csv, validation: held.csv, text: descripcion, "
    case = Case(files, ".csv", f"{spec}labels: {reports.LABELS}}}\nmodel: {MODEL}\n")
    done = train_case(case, tmp_path)
    validation_outputs = collect_outputs(done)
    shutil.copytree(done.folder / "model", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "saved")
    loaded = saved_model.load(tmp_path / "elsewhere")
    new = load_data.load_new([tmp_path / "held.csv"], loaded.preprocessing, loaded.heads, labelled=True)
    outputs = loaded.network.eval()(*new.split.gather(np.arange(40)))
    for name, expected in validation_outputs.items():
        torch.testing.assert_close(outputs[name], expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(new.split.targets[name], done.dataset.validation.targets[name])


@pytest.mark.parametrize(
    ("modes", "pooling"),
    [
        (["mean_tokens"], "mean"),
        (["max_tokens"], "max"),
        (["cls_token"], "cls"),
        (["cls_token", "mean_tokens"], "cls"),
        (["weightedmean_tokens"], "cls"),
    ],
)
def test_the_folder_says_how_a_vector_is_made(folder: Path, modes: list[str], pooling: str) -> None:
    """As sentence-transformers writes it; of several ways at once, or ways that we lack, the family's is taken."""
    settings = {f"pooling_mode_{mode}": mode in modes for mode in ("cls_token", "mean_tokens", "max_tokens", *modes)}
    (folder / "saved" / "1_Pooling").mkdir()
    (folder / "saved" / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 8, **settings}))
    training_run = assemble_run(folder)
    assert isinstance(training_run.model, TextNetwork)
    assert training_run.model.pooling == training_run.built_model.arguments["pooling"] == pooling
    is_noted = any("as its 1_Pooling/config.json says" in note for note in training_run.dataset.notes)
    assert is_noted == (len(modes) == 1 and modes != ["weightedmean_tokens"])
    assert (omits if is_noted else says)(training_run.dataset.notes, "names-way-possible")
    explicit = assemble_run(folder, MODEL[:-1] + ", pooling: cls}")
    assert explicit.built_model.arguments["pooling"] == "cls"


def test_a_run_goes_on_with_the_pooling_that_it_began_with(folder: Path) -> None:
    job = assemble_run(folder).job
    began = load(job)
    (folder / "saved" / "1_Pooling").mkdir()
    (folder / "saved" / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    resumed = load(job, InputRecord(began.preprocessing, began.heads, same_data=True))
    assert build.build(job, resumed).arguments["pooling"] == "cls"
    assert build.build(job, load(job)).arguments["pooling"] == "mean"


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta", "electra", "albert"])
def test_families(tmp_path: Path, family: str) -> None:
    reports.write_reports(tmp_path)
    saved = reports.save_encoder(tmp_path, family)
    training_run = assemble_run(tmp_path)
    assert have_same_weights(encoder(training_run), weights(saved / "model.safetensors"))
    assert says(training_run.dataset.notes, "encoder-text-represented-first", family, saved)
    inputs = training_run.dataset.train.gather(np.arange(3))
    assert training_run.model(*inputs)["causa"].shape == (3, 8)
    longest = {"roberta": 62}.get(family, 64)
    assert says(training_run.dataset.notes, "max-length-limit-network", longest)


def test_the_tokenizer_is_that_of_the_folder(folder: Path) -> None:
    import tokenizers

    inner = tokenizers.Tokenizer.from_file(str(folder / "saved" / "tokenizer.json"))
    dataset = load(reports.job(folder, model=MODEL, data=", max_length: 64"))
    inner.enable_truncation(64)
    ids, mask = dataset.train.gather(np.array([3]))
    title = dataset.train.title(3)
    row = int(title.split("row ")[1].split(":")[0])
    text = (folder / "reports.csv").read_text(encoding="utf-8").splitlines()[row]
    assert ids[0][mask[0] == 1].tolist()[1:6] == inner.encode(text.strip('"')).ids[1:6]


def test_a_vocabulary_of_an_older_form_gives_the_same_tokens(folder: Path) -> None:
    """BERT's vocab.txt, where tokenizer.json is not there."""
    expected = load(reports.job(folder, model=MODEL)).train.gather(np.arange(8))
    tokens = json.loads((folder / "saved" / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "saved" / "tokenizer.json").unlink()
    (folder / "saved" / "vocab.txt").write_text("\n".join(sorted(tokens, key=tokens.__getitem__)) + "\n")
    (folder / "saved" / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True, "strip_accents": False})
    )
    assert torch.equal(load(reports.job(folder, model=MODEL)).train.gather(np.arange(8))[0], expected[0])


def pickle_weights(folder: Path, name: str = "pytorch_model.bin") -> Path:
    """The pickle twin: the same weights, no safetensors."""
    pickle_folder = shutil.copytree(folder / "saved", folder / "twin")
    torch.save(safetensors.torch.load_file(pickle_folder / "model.safetensors"), pickle_folder / name)
    (pickle_folder / "model.safetensors").unlink()
    return pickle_folder


@pytest.mark.parametrize("name", ["pytorch_model.bin", "best_model.bin"])
def test_the_pickle_twin_is_refused(folder: Path, name: str) -> None:
    pickle_folder = pickle_weights(folder, name)
    with pytest.raises(SpecError) as caught:
        load(reports.job(folder, model="{source: transformers, name: twin}"))
    message = str(caught.value)
    assert says(message, "has-its-weights-only-as-pickle", "model.name", pickle_folder)
    assert f"do:       run `drivetrain fetch {folder / 'job.yaml'}`" in message


def test_the_pickle_twin_converts(folder: Path) -> None:
    """By the command that its refusal names."""
    pickle_weights(folder)
    reports.job(folder, model="{source: transformers, name: twin}")
    assert main(["fetch", str(folder / "job.yaml")]) == 0
    training_run = assemble_run(folder, "{source: transformers, name: twin}")
    assert have_same_weights(encoder(training_run), weights(folder / "saved" / "model.safetensors"))


def remove(name: str) -> Callable[[Path], object]:
    return lambda saved: (saved / name).unlink()


def config(**values: object) -> Callable[[Path], object]:
    return lambda saved: reports.edit_json(saved / "config.json", **values)


def foreign(saved: Path) -> None:
    safetensors.torch.save_file({"other.weight": torch.zeros(2)}, saved / "model.safetensors")


def code(saved: Path) -> None:
    """A folder that brings its own code."""
    (saved / "modeling_evil.py").write_text(f"open({str(saved / 'ran')!r}, 'w')\n")
    reports.edit_json(
        saved / "config.json",
        model_type="evil",
        auto_map={"AutoConfig": "modeling_evil.EvilConfig", "AutoModel": "modeling_evil.EvilModel"},
    )


BAD: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "no config": (remove("config.json"), ("has no config.json", "save_pretrained")),
    "no weights": (remove("model.safetensors"), ("has no weights",)),
    "no tokenizer": (remove("tokenizer.json"), ("the tokenizer in", "cannot be used: it has none of tokenizer.json")),
    "weights of another name": (
        lambda saved: (saved / "model.safetensors").rename(saved / "best.safetensors") and None,
        ("has its weights as best.safetensors", "rename the file"),
    ),
    "weights of another network": (
        foreign,
        ("lacks ", "embeddings", "it has other.weight", "weights that match config.json"),
    ),
    "weights of another size": (config(hidden_size=32), ("cannot be loaded",)),
    "a family that nobody knows": (config(model_type="nobody"), ("config.json cannot be used", "nobody")),
    "code of its own": (code, ("config.json cannot be used",)),
    "half a config": (
        lambda saved: (saved / "config.json").write_text('{"model_type": "bert",') and None,
        ("config.json cannot be used",),
    ),
    "half the weights": (
        lambda saved: (saved / "model.safetensors").write_bytes(b"\x10" * 99) and None,
        ("cannot be loaded",),
    ),
    "half a tokenizer": (
        lambda saved: (saved / "tokenizer.json").write_text("{") and None,
        ("the tokenizer in", "cannot be used"),
    ),
    "a tokenizer of another network": (config(vocab_size=50), ("has 400 tokens, the network 50",)),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_folders(folder: Path, case: str, capfd: pytest.CaptureFixture[str]) -> None:
    spoil, parts = BAD[case]
    spoil(folder / "saved")
    with pytest.raises(SpecError) as caught:
        assemble_run(folder)
    message = str(caught.value)
    for part in ("job.yaml:5:", "model.name: ", *parts, "\n  possible: ", "\n  do:       "):
        assert part in message, message
    assert "Traceback" not in message
    assert not (folder / "saved" / "ran").exists()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("family", "message"), [("t5", "does not accept texts of"), ("vit", "does not process text")])
def test_networks_that_are_no_text_encoders(tmp_path: Path, family: str, message: str) -> None:
    reports.write_reports(tmp_path)
    reports.save_encoder(tmp_path, family)
    with pytest.raises(SpecError, match=message):
        assemble_run(tmp_path)


def test_more_tokens_than_the_network_sees(folder: Path) -> None:
    with pytest.raises(SpecError, match=r"data.max_length: is 65\n  possible: at most 64 tokens in this network"):
        assemble_run(folder, data=", max_length: 65")


def test_layers_that_are_shared_cannot_be_counted(tmp_path: Path) -> None:
    reports.write_reports(tmp_path)
    reports.save_encoder(tmp_path, "albert")
    with pytest.raises(SpecError, check=saying("this-network-has-no-layers")):
        assemble_run(tmp_path, "{source: transformers, name: saved, freeze: {layers: 1}}")


@pytest.mark.parametrize("name", ["./modelos/beto", "/modelos/beto", "a/b/c"])
def test_a_missing_folder(tmp_path: Path, name: str) -> None:
    reports.write_reports(tmp_path)
    with pytest.raises((SpecError, DataError), match="does not exist"):
        load(reports.job(tmp_path, model=f"{{source: transformers, name: {name}}}"))


def test_a_pickle_file_as_the_networks_name(folder: Path) -> None:
    pickle_weights(folder, "best_model.bin")
    with pytest.raises(SpecError, match=r"best_model.bin is a file(.|\n)*name its folder"):
        load(reports.job(folder, model="{source: transformers, name: twin/best_model.bin}"))


def hub(monkeypatch: pytest.MonkeyPatch, folder: Path, port: int) -> None:
    """A hub at a port of this machine, and a cache in the folder."""
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "cache"))


@pytest.mark.parametrize("answers", [False, True])
def test_a_name_on_the_hub_without_network(folder: Path, monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    """Nobody listens, or somebody listens and never says a word."""
    monkeypatch.setattr(hub_client, "READ_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(hub_client, "FIRST_PAUSE_SECONDS", 0.01)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if answers:
            silent.listen()
        hub(monkeypatch, folder, silent.getsockname()[1])
        with pytest.raises(SpecError) as caught:
            load(reports.job(folder, model="{source: transformers, name: bert-base-nowhere}"))
        port = silent.getsockname()[1]
    cause = "no answer within 0.2 s" if answers else "Connection refused"
    assert says_only(
        str(caught.value),
        "bert-base-nowhere-local",
        folder,
        "/job.yaml",
        5,
        31,
        "model.name",
        "http://127.0.0.1",
        port,
        cause,
    )


def test_a_name_in_the_cache_needs_no_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = folder / "cache" / "models--casa--beto" / "snapshots" / "0123"
    shutil.copytree(folder / "saved", cached)
    (folder / "cache" / "models--casa--beto" / "refs").mkdir()
    (folder / "cache" / "models--casa--beto" / "refs" / "main").write_text("0123")
    hub(monkeypatch, folder, 9)
    hub_job = reports.job(folder, model="{source: transformers, name: casa/beto}")
    assert pretrained.find(hub_job, "casa/beto").folder == cached
