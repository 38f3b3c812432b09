"""Several text columns: pairs as transformers encodes them, truncation at each side, and the way of a pair to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow
import pytest
import safetensors.torch
import torch
from tokenizers import Tokenizer, processors

from drivetrain.cli import main
from drivetrain.data.load_data import load
from drivetrain.data.text import tokenizer
from drivetrain.data.text.corpus import TextSplit
from drivetrain.data.text.encoded import Encoded, Ragged, SpecialTokens, Template
from drivetrain.errors import DataError, SpecError
from drivetrain.inference import onnx_file, predictions
from drivetrain.job_spec import load_job as job_spec
from drivetrain.models import dummy_inputs, frozen_split, saved_model
from drivetrain.models.networks.text_encoder import TextNetwork
from drivetrain.pretrained.folder import quiet_transformers
from drivetrain.training.run import Run
from tests import reports, tiny
from tests.data.text.text_pairs import CASE, make_token_rows, save_encoder, write_table
from tests.messages import saying, says
from tests.task_cases import collect_outputs, train_case


def job(folder: Path, text: str = "[first, second]", data: str = "", model: str = reports.ENCODER) -> Any:
    return reports.job(folder, train="pairs.csv", text=text, labels="same", data=data, model=model)


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_pair_gives_the_outputs_that_transformers_computes(tmp_path: Path, family: str, side: str) -> None:
    saved = save_encoder(tmp_path, family)
    write_table(tmp_path / "pairs.csv")
    if family == "bert":
        # With random weights of BERT's size of 0.02, the token types would hardly be seen.
        weights = safetensors.torch.load_file(saved / "model.safetensors")
        weights["embeddings.token_type_embeddings.weight"] = torch.randn(2, 16, generator=torch.manual_seed(1))
        safetensors.torch.save_file(weights, saved / "model.safetensors", {"format": "pt"})
    data = f", max_length: 16, truncation: {side}"
    pair_job = job(tmp_path, data=data, model="{source: transformers, name: saved}")
    plain_run = tiny.assemble_plain_run(pair_job, tmp_path)
    network, split = plain_run.model.eval(), plain_run.dataset.validation
    assert isinstance(network, TextNetwork)
    assert isinstance(split, TextSplit)
    ids = np.arange(len(split))
    with quiet_transformers() as transformers, torch.no_grad():
        hub_tokenizer = transformers.AutoTokenizer.from_pretrained(saved, truncation_side=side)
        hub_network = transformers.AutoModel.from_pretrained(saved).eval()
        pairs = [column.to_pylist() for column in split.table.take(split.rows)]
        hub_inputs = hub_tokenizer(*pairs, truncation="longest_first", max_length=16, padding=True, return_tensors="pt")
        expected = network.outputs(hub_network(**hub_inputs).last_hidden_state[:, 0])
        inputs = split.gather(ids)
        outputs = network(*inputs)
    assert len(inputs) == len(hub_inputs) == (3 if family == "bert" else 2)
    assert int(split.lengths.max()) == 16
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(network.packed(*inputs), expected, rtol=1e-4, atol=1e-5)


def truncate_pairs(side: Literal["right", "left", "middle"], room: int) -> list[tuple[list[int], list[int]]]:
    """All pairs of 0 to 9 tokens with a separator, truncated; as the two columns."""
    first = [row for row in make_token_rows(10, 100) for _ in range(10)]
    second = make_token_rows(10, 200) * 10
    special = SpecialTokens((1,), (0,))
    encoded_pairs = Encoded(
        tuple(Ragged.from_chunks([column]) for column in (first, second)), Template((special,) * 3, (0, 1))
    )
    sequences = encoded_pairs.sequences(room + 3, side)
    samples = [sequences.flat[a:b].tolist() for a, b in zip(sequences.offsets, sequences.offsets[1:], strict=False)]
    types = encoded_pairs.types(room + 3, side)
    assert all(sample[0] == sample[-1] == 1 and sample.count(1) == 3 for sample in samples)
    assert types.flat[sequences.flat >= 200].all()
    assert not types.flat[sequences.flat < 200].any()
    return [([x for x in s if 100 <= x < 200], [x for x in s if x >= 200]) for s in samples]


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_longer_text_is_truncated_first(side: Literal["right", "left"]) -> None:
    """As the library truncates pairs, for all lengths."""
    vocabulary = {f"t{number}": number for number in range(300)} | {"[UNK]": 300}
    library_tokenizer = Tokenizer(tokenizer.load_library().models.WordLevel(vocabulary, "[UNK]"))
    library_tokenizer.pre_tokenizer = tokenizer.load_library().pre_tokenizers.WhitespaceSplit()
    library_tokenizer.enable_truncation(7, direction=side)
    texts = [[" ".join(f"t{x}" for x in row) for row in make_token_rows(10, offset)] for offset in (100, 200)]
    for pair_index, (first, second) in enumerate(truncate_pairs(side, 7)):
        token_ids = library_tokenizer.encode(texts[0][pair_index // 10], texts[1][pair_index % 10]).ids
        assert [x for x in token_ids if x < 200] == first
        assert [x for x in token_ids if x >= 200] == second


def test_the_middle_is_left_out() -> None:
    """A quarter of the kept tokens is from the start: 128 of 510, as Sun et al. keep."""
    column = Ragged.from_chunks([[list(range(1000)), list(range(300)), []]])
    special = SpecialTokens((5000,), (0,))
    sequences = Encoded((column,), Template((special, special), (0,))).sequences(512, "middle")
    first = sequences.flat[:512].tolist()
    assert first == [5000, *range(128), *range(1000 - 382, 1000), 5000]
    assert sequences.lengths.tolist() == [512, 302, 2]


def columns(*texts: list[str]) -> list[Any]:
    return [pyarrow.chunked_array([column], "string") for column in texts]


def test_columns_are_separated() -> None:
    word_tokenizer = tokenizer.learn(columns(["la bomba", "el motor"] * 5, ["fuga", "eje"] * 5, ["x", "y"] * 5), 200)
    token_ids = word_tokenizer.encode(columns(["la bomba"], ["motor"], ["fuga"])).sequences().flat.tolist()
    tokens = [word_tokenizer.inner.id_to_token(number) for number in token_ids]
    assert tokens == ["[CLS]", "la", "bomba", "[SEP]", "motor", "[SEP]", "fuga", "[SEP]"]
    # As RoBERTa, which has two separators between the texts of a pair and one at the end.
    inner = tokenizer.load_library().Tokenizer.from_str(word_tokenizer.inner.to_str())
    special_tokens = [(token, inner.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    single, pair = "[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]"
    inner.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special_tokens)
    token_ids = tokenizer.Tokenizer(inner, 0).encode(columns(["la bomba"], ["motor"], ["fuga"])).sequences().flat
    tokens = [inner.id_to_token(number) for number in token_ids.tolist()]
    assert tokens == ["[CLS]", "la", "bomba", "[SEP]", "[SEP]", "motor", "[SEP]", "[SEP]", "fuga", "[SEP]"]
    plain_tokenizer = tokenizer.Tokenizer(tokenizer.load_library().Tokenizer(word_tokenizer.inner.model), 0)
    with pytest.raises(DataError, check=saying("columns-tokenizer-special-token", 2)):
        plain_tokenizer.encode(columns(["la"], ["bomba"]))


def test_a_tokenizer_of_an_earlier_version_has_no_template_for_pairs() -> None:
    old_tokenizer = tokenizer.learn(columns(["la bomba", "el motor"] * 5), 200)
    single = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    old_tokenizer.inner.post_processor = single
    token_ids = old_tokenizer.encode(columns(["la bomba"], ["motor"])).sequences().flat.tolist()
    assert [number for number in token_ids if number < 5] == [2, 3, 3]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_case(CASE, tmp_path_factory.mktemp("pairs"))


def test_a_pair_is_predicted_as_it_was_validated(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the model folder alone: both columns, their token types, and the same truncation."""
    assert says(run.dataset.notes, "texts-cut-middle")
    inputs = run.dataset.validation.gather(np.arange(4))
    assert frozen_split.split_network(run.model, inputs) is not None
    predicted_rows = predict_rows(run, tmp_path, run.folder.parent / "held.csv")
    assert "max_length 12: " in capsys.readouterr().err
    expected = (
        predictions.compute_probabilities(saved_model.load(run.folder).heads[""], collect_outputs(run)[""])
        .max(dim=1)
        .values
    )
    torch.testing.assert_close(
        torch.tensor([row["probability"] for row in predicted_rows]), expected, rtol=1e-4, atol=1e-5
    )
    assert predicted_rows[0]["sample"].startswith("held.csv row 1: ")
    assert " | " in predicted_rows[0]["sample"]


def predict_rows(run: Run, folder: Path, data: Path) -> list[dict[str, Any]]:
    output = folder / "out.jsonl"
    arguments = ["predict", str(run.folder), str(data), "--probabilities", "--output", str(output)]
    assert main.main(arguments) == 0
    return [json.loads(line) for line in output.read_text().splitlines()]


def test_a_missing_column_is_named(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "new.csv").write_text("first,third\na b,c\n")
    assert main.main(["predict", str(run.folder), str(tmp_path / "new.csv")]) == 3
    assert says(capsys.readouterr().err, "has-no-column", "new.csv", "second")


def test_one_of_two_texts_may_be_empty(run: Run, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("first,second\nla bomba,\n,fuga\n,\n")
    assert len(predict_rows(run, tmp_path, tmp_path / "new.csv")) == 2


def test_an_exported_file_has_the_token_types(run: Run) -> None:
    inputs = dummy_inputs.make_inputs(run.dataset.preprocessing, 5, 0)
    assert onnx_file.list_input_names(run.model, len(inputs)) == ["ids", "types", "mask"]
    assert [x.shape for x in inputs] == [inputs[0].shape] * 3
    assert inputs[1].any()


def test_a_job_starts_from_a_run_of_pairs(run: Run) -> None:
    path = run.folder.parent / "more.yaml"
    path.write_text(
        "name: more\ntask: text-classification\ndata: {train: train.csv, text: [first, second], labels: same}\n"
        f"model: {{from: {run.folder}}}\n"
    )
    dataset = load(job_spec.load(path))
    assert dataset.preprocessing["token_types"] is True
    assert len(dataset.train.gather(np.arange(3))) == 3


def test_a_text_column_cannot_be_a_label(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"data.labels: has 'same', which data.text has too"):
        reports.job(tmp_path, train="pairs.csv", text="[first, same]", labels="same")
    with pytest.raises(SpecError, match="first appears twice"):
        reports.job(tmp_path, train="pairs.csv", text="[first, first]", labels="same")


def test_init_finds_a_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_table(tmp_path / "pairs.csv")
    content = path.read_text()
    path.write_text(content.replace("first,second", "text1,text2"))
    assert main.main(["init", "pairs.csv"]) == 0
    assert job_spec.load(Path("pairs.yaml")).data.text == ("text1", "text2")  # type: ignore[attr-defined]
    path.write_text(content.replace("first,second", "the premise,hypothesis"))
    assert main.main(["init", "pairs.csv", "--output", "one.yaml"]) == 0
    assert job_spec.load(Path("one.yaml")).data.text == ("the premise",)  # type: ignore[attr-defined]
    assert "--text 'the premise' --text hypothesis" in Path("one.yaml").read_text(), "what reads all of them"
    assert main.main(["init", "pairs.csv", "--text", "third", "--text", "hypothesis", "--output", "two.yaml"]) == 0
    assert job_spec.load(Path("two.yaml")).data.text == ("third", "hypothesis")  # type: ignore[attr-defined]
