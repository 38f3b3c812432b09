"""Trains networks of odd sizes on every instruction set under a heap checker, to find faulty kernels of torch and oneDNN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests import heap
from tests.convolutions import answers, cases

OPTIONS = "fused_optimizer: true, denormals: true, measure: off"
IMAGES = "name: odd\ntask: image-classification\ndata: {train: images.npz, validation: 0.25}\n"
SERIES = "name: odd\ntask: series-classification\ndata: {train: series.npz, validation: 0.25}\n"
TEXTS = "name: odd\ntask: text-classification\ndata: {train: texts.csv, validation: 0.25, text: text, labels: label}\n"
TABLE = "name: odd\ntask: tabular-classification\ndata: {train: table.csv, validation: 0.25, target: label}\n"
NARROW = "{name: encoder, layers: 2, width: 10, heads: 2, vocabulary: 200, dropout: 0.3}"
JOBS = {
    "small-cnn of 3 channels": f"{IMAGES}model: {{name: small-cnn, width: 3, dropout: 0.2}}\noptimize: {{channels_last: true, {OPTIONS}}}",
    "resnet of 5": f"{IMAGES}model: {{name: resnet18, width: 5}}\noptimize: {{channels_last: true, micro_batch: 1, {OPTIONS}}}",
    "resnet of 5 in bf16": f"{IMAGES}model: {{name: resnet18, width: 5}}\noptimize: {{channels_last: true, precision: bf16, {OPTIONS}}}",
    "resnet50 of 3, compiled": f"{IMAGES}model: {{name: resnet50, width: 3}}\noptimize: {{compile: true, {OPTIONS}}}",
    "frozen stem": f"{IMAGES}model: {{name: resnet18, width: 7, freeze: {{names: [stem]}}}}\n"
    f"optimize: {{channels_last: true, feature_cache: true, {OPTIONS}}}",
    "lstm of 1": f"{SERIES}model: {{name: cnn-lstm, cnn_channels: [3], kernel: 5, lstm_hidden: 1}}\noptimize: {{{OPTIONS}}}",
    "lstm of 17": f"{SERIES}model: {{name: cnn-lstm, cnn_channels: [1, 7], kernel: 3, lstm_hidden: 17}}\noptimize: {{{OPTIONS}}}",
    "lstm of 17 in bf16": f"{SERIES}model: {{name: cnn-lstm, cnn_channels: [5], kernel: 1, lstm_hidden: 17}}\n"
    f"optimize: {{precision: bf16, {OPTIONS}}}",
    "heads of 5": f"{TEXTS}model: {NARROW}\noptimize: {{unpadding: packed, {OPTIONS}}}",
    "heads of 5, padded": f"{TEXTS}model: {NARROW}\noptimize: {{unpadding: off, {OPTIONS}}}",
    "heads of 5 in bf16": f"{TEXTS}model: {NARROW}\noptimize: {{unpadding: packed, precision: bf16, {OPTIONS}}}",
    "tabm of 7": f"{TABLE}model: {{name: tabm, members: 3, hidden: [7, 3], dropout: 0.3}}\noptimize: {{{OPTIONS}}}",
    "table of 7": f"{TABLE}model: {{name: mlp, hidden: [7, 3], dropout: 0.3}}\noptimize: {{{OPTIONS}}}",
}
BATCH_SIZES = {1: 3, 2: 7}
"""Batch size by number of threads; both are odd."""


def write_data(folder: Path) -> None:
    """Write 44 samples of odd sizes in three classes for every kind of job."""
    random, labels = np.random.default_rng(0), np.arange(44) % 3
    images = random.integers(0, 256, (44, 3, 9, 9)).astype(np.uint8)
    np.savez(folder / "images.npz", images=images, labels=labels)
    np.savez(folder / "series.npz", x=random.normal(size=(44, 13, 3)).astype(np.float32), y=labels)
    vocabulary = ["".join(random.choice(list("abcde"), 3)) for _ in range(40)]
    text_rows = ["text,label"]
    for label in labels:
        text = " ".join(random.choice(vocabulary, random.integers(1, 23)))
        text_rows.append(f"{text},l{label}")
    (folder / "texts.csv").write_text("\n".join(text_rows) + "\n")
    table_rows = ["number,kind,label"]
    for number, label in zip(random.normal(size=44), labels, strict=True):
        table_rows.append(f"{number:.3f},{'abc'[label]},l{label}")
    (folder / "table.csv").write_text("\n".join(table_rows) + "\n")


@pytest.mark.nightly
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("instruction_set", heap.CAPS)
@pytest.mark.parametrize("name", JOBS)
def test_training_corrupts_no_memory(tmp_path: Path, name: str, instruction_set: str, threads: int) -> None:
    heap.require_checker()
    write_data(tmp_path)
    job = JOBS[name].replace("optimize: {", f"optimize: {{cpu_threads: {threads}, ")
    train = f"train: {{epochs: 2, batch_size: {BATCH_SIZES[threads]}}}"
    (tmp_path / "job.yaml").write_text(f"{job}\n{train}\n")
    done = heap.run_module(
        ["drivetrain", "train", str(tmp_path / "job.yaml"), "--runs", str(tmp_path / "runs")],
        heap.environment(instruction_set, threads),
    )
    if done.returncode == 2 and "optimize.precision" in done.stderr:
        pytest.skip("this instruction set has no bf16")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    # The run must not have continued after a crash either.
    assert "crash: " not in done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("instruction_set", heap.CAPS)
def test_convolutions_give_the_reference_result(instruction_set: str, threads: int) -> None:
    heap.require_checker()
    configurations = [
        *cases(
            inputs=[1, 3, 5, 7, 12, 17],
            outputs=[1, 3, 8],
            kernel=[1, 2, 3, 5],
            stride=[1, 2, 3],
            padding=[0, 1],
            size=[1, 2, 3, 5, 9],
            batch=[1, 3],
            channels_last=[True, False],
        ),
        *cases(
            inputs=[3, 7, 12, 16], kernel=[1, 3], stride=[1, 2, 3], size=[18, 63, 64, 66], channels_last=[True, False]
        ),
        *cases(
            inputs=[3, 12], kernel=[1, 3], stride=[1, 2], size=[5, 64], dtype=["bfloat16"], channels_last=[True, False]
        ),
        *cases(inputs=[6], outputs=[6, 12], groups=[2, 3, 6], kernel=[1, 3], stride=[1, 2], size=[5, 32]),
        *cases(kernel=[2, 3], dilation=[2, 3], size=[9, 31], inputs=[3, 7]),
        *cases(kind=["ConvTranspose2d"], inputs=[1, 3, 7], outputs=[1, 3, 8, 12], kernel=[1, 2, 3], size=[1, 5, 32]),
        *cases(kind=["Conv1d"], inputs=[1, 3, 7, 12], kernel=[1, 2, 3, 5], stride=[1, 2, 3], size=[7, 64, 501]),
        *cases(inputs=[3, 12], size=[16, 64], compile=[True], channels_last=[True, False]),
    ]
    assert answers(configurations, instruction_set, threads) == {}
