"""The linear model of texts: sums over tokens and pairs, whatever the padding, from training to an exported file."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from drivetrain.cli import main
from drivetrain.errors import SpecError
from drivetrain.hardware.detect import detect
from drivetrain.job_spec import load_job
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.models.networks.word_bag import PAIR_BUCKETS, SHARPNESS, WordBag, choose_pair_buckets
from drivetrain.plan import plan as plans
from drivetrain.training import solvable_heads
from drivetrain.training.sparse_rows import SparseRows
from drivetrain.tuning import measuring_child
from tests import tiny
from tests.messages import get_message, says

TEXT = """
name: bag
task: text-classification
data: {train: texts.csv, text: text, labels: LABELS}
model: {name: linear, vocabulary: 200}
train: {epochs: 4, batch_size: 16, optimizer: {name: adamw, lr: 0.01}}
optimize: {cpu_threads: 1, measure: off}
baselines: off
"""
IDS = torch.tensor([[2, 7, 9, 3, 0, 0], [2, 9, 7, 9, 7, 3]])
MASK = (IDS > 0).long()


def make_bag(outputs: dict[str, int]) -> WordBag:
    bag = WordBag(10, outputs, 0.0)
    with torch.no_grad():
        for parameter in bag.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(len(parameter)))
    return bag


def test_outputs_are_sums_over_tokens_and_pairs() -> None:
    bag = make_bag({"": 3})
    rows = IDS[0, :4]
    pair_rows = (rows[:-1] * 1_000_003 + rows[1:] * 7_919) % PAIR_BUCKETS
    total = bag.words[0].weight[rows].sum(0) + bag.pairs[0].weight[pair_rows].sum(0)
    torch.testing.assert_close(bag(IDS, MASK)[0], bag.biases[0] + SHARPNESS * total / 7**0.5)


def test_repeated_tokens_and_pairs_count_with_the_logarithm_of_their_number() -> None:
    bag = make_bag({"": 3})
    ids = torch.tensor([[5, 4, 5, 4, 8, 5, 5]])
    counts = {5: 4, 4: 2, 8: 1}
    pair_counts = {(5, 4): 2, (4, 5): 1, (4, 8): 1, (8, 5): 1, (5, 5): 1}
    total = torch.zeros(3)
    for word, count in counts.items():
        total = total + (1 + math.log(count)) * bag.words[0].weight[word]
    for (first, second), count in pair_counts.items():
        row = (first * 1_000_003 + second * 7_919) % PAIR_BUCKETS
        total = total + (1 + math.log(count)) * bag.pairs[0].weight[row]
    length = math.hypot(*(1 + math.log(count) for count in (*counts.values(), *pair_counts.values())))
    torch.testing.assert_close(bag(ids, torch.ones_like(ids))[0], bag.biases[0] + SHARPNESS * total / length)


def test_repeats_are_counted_alike_in_an_exported_network(monkeypatch: pytest.MonkeyPatch) -> None:
    bag = make_bag({"": 3}).eval()
    ids = torch.randint(10, (6, 40), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(40) < torch.tensor([[1], [2], [40], [17], [5], [39]])).long()
    outputs = bag(ids, mask)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.equal(bag(ids, mask), outputs)


def test_padding_changes_nothing_and_order_does() -> None:
    bag = make_bag({"": 3})
    torch.testing.assert_close(bag(IDS[:1, :4], MASK[:1, :4]), bag(IDS, MASK)[:1])
    swapped = IDS[:1, [0, 2, 1, 3]]
    assert not torch.allclose(bag(swapped, MASK[:1, :4]), bag(IDS, MASK)[:1])


def test_columns_and_head_weights_give_the_same_outputs() -> None:
    bag = make_bag({"kind": 2, "place": 4}).eval()
    features = SparseRows.from_padded(*bag.read_columns(IDS, IDS, MASK), bag.width)
    weight, bias, rarity = torch.randn(4, bag.width), torch.randn(4), torch.rand(bag.width)
    bag.load_head(1, weight, bias, rarity)
    rows = replace(features, values=features.values * rarity[features.columns]).normalize()
    torch.testing.assert_close(bag(IDS, IDS, MASK)["place"], rows.multiply(weight.T.contiguous()) + bias)


def test_models_with_few_outputs_have_more_rows_for_pairs_and_stored_ones_keep_theirs() -> None:
    assert [choose_pair_buckets(outputs) for outputs in (2, 64, 65)] == [2**18, 2**18, 2**17]
    stored = WordBag(vocabulary=10, outputs={"": 2}, dropout=0.1)
    assert stored.width == 10 + 2**17


def test_several_heads_and_a_fresh_network_that_knows_nothing() -> None:
    outputs = make_bag({"kind": 2, "place": 4})(IDS, IDS, MASK)
    assert {name: tuple(values.shape) for name, values in outputs.items()} == {"kind": (2, 2), "place": (2, 4)}
    assert not WordBag(vocabulary=10, outputs={"": 2}, dropout=0.1)(IDS, MASK).any()


def read_events(run: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def write_job(folder: Path, labels: str = "label") -> Path:
    vocabulary = [f"word{i}" for i in range(30)]
    with (folder / "texts.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label", "other"])
        for i in range(240):
            body = [vocabulary[(i * 7 + j * 5) % 30] for j in range(3 + i % 9)]
            label = "late" if i % 2 else "early"
            rows.writerow([" ".join([*body, "not" if i % 2 else "very", "done"]), label, "ab"[i // 2 % 2]])
    (folder / "bag.yaml").write_text(TEXT.replace("LABELS", labels))
    return folder / "bag.yaml"


@pytest.mark.parametrize("labels", ["label", "[label, other]"])
def test_it_learns_predicts_exports_and_starts_a_later_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], labels: str
) -> None:
    runs = str(tmp_path / "runs")
    assert main.main(["train", str(write_job(tmp_path, labels)), "--runs", runs]) == 0
    run = f"{runs}/bag-001"
    assert main.main(["evaluate", run, "--data", str(tmp_path / "texts.csv"), "--json"]) == 0
    out = capsys.readouterr().out
    heads = [row["text"] for row in read_events(Path(run)) if row["kind"] == "heads"]
    assert [text.count("solved with penalty") for text in heads] == [0, 1 + (labels != "label")]
    assert '"label/accuracy": 1.0' in out.replace("test/", "") or '"accuracy": 1.0' in out.replace("test/", "")
    assert main.main(["predict", run, str(tmp_path / "texts.csv")]) == 0
    if labels == "label":
        starts_a_later_run_by_steps(tmp_path, runs)
    pytest.importorskip("onnxruntime")
    assert main.main(["export", run]) == 0


def starts_a_later_run_by_steps(folder: Path, runs: str) -> None:
    text = (folder / "bag.yaml").read_text().replace("{name: linear, vocabulary: 200}", "{from: runs/bag-001}")
    (folder / "later.yaml").write_text(text.replace("name: bag", "name: later"))
    assert main.main(["train", str(folder / "later.yaml"), "--runs", runs]) == 0
    events = [row["text"] for row in read_events(Path(runs) / "later-001") if row["kind"] == "heads"]
    assert len(events) == 1
    assert says(events[0], "starts-from-weights")


@pytest.mark.parametrize(
    ("settings", "obstacle"),
    [
        (["model.dropout=0.3"], get_message("drops-other-words")),
        (["train.ema=0.9"], get_message("ema-averages-weights")),
        (["train.solve_heads=false"], ""),
    ],
)
def test_it_is_trained_by_steps_where_it_cannot_be_solved(
    tmp_path: Path, settings: list[str], obstacle: str, capfd: pytest.CaptureFixture[str]
) -> None:
    options = [word for setting in settings for word in ("--set", setting)]
    job = write_job(tmp_path)
    assert main.main(["train", str(job), "--runs", str(tmp_path / "runs"), *options]) == 0
    heads = [row["text"] for row in read_events(tmp_path / "runs/bag-001") if row["kind"] == "heads"]
    assert [obstacle in text for text in heads] == ([True] if obstacle else [])
    if obstacle:
        options += ["--set", "train.solve_heads=true"]
        assert main.main(["train", str(job), "--runs", str(tmp_path / "runs"), "--new", *options]) == 2
        assert obstacle in capfd.readouterr().err


def test_commands_about_steps_say_that_there_are_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    job = str(write_job(tmp_path))
    assert main.main(["bench", "lr", job]) == 2
    assert says(capfd.readouterr().err, "no-rate-has-effect")
    settings = ("--set", "train.batch_size=240", "--set", "model.dropout=0")
    assert main.main(["train", job, "--runs", str(tmp_path / "runs"), *settings]) == 0
    output = capfd.readouterr().out
    assert "smaller batches" not in output
    assert "solved with penalty" in output


@pytest.mark.slow
def test_bench_says_that_training_takes_no_steps(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, machine = SpecSource(write_job(tmp_path)), detect(tmp_path)
    plan = plans.resolve(source.load(), machine)
    request = {"against": list[str]()}
    assert measuring_child.measure("speed", tmp_path, source, plan, machine, request) == 0
    assert says(capfd.readouterr().out, "bench-of-solved-heads")


def test_many_texts_are_trained_by_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solvable_heads, "MAX_PRODUCTS", 100)
    run = tiny.assemble_plain_run(load_job.load(write_job(tmp_path)), tmp_path / "run")
    assert not run.solves_heads
    assert says(run.unsolved_reason, "solved-takes-minutes", 2)


@pytest.mark.parametrize("key", ["layers: 2", "width: 64", "heads: 2", "pooling: cls"])
def test_keys_of_the_encoder_are_refused(tmp_path: Path, key: str) -> None:
    path = write_job(tmp_path)
    path.write_text(path.read_text().replace("vocabulary: 200", key))
    with pytest.raises(SpecError) as error:
        load_job.load(path)
    assert [problem.key for problem in error.value.problems] == [f"model.{key.split(':')[0]}"]
