"""Odd shapes on every instruction set, under a heap checker: torch's and oneDNN's own kernels are what is tested."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests import heap
from tests.convolutions import answers, cases

ON = "fused_optimizer: true, denormals: true, measure: off"
IMAGES = "name: odd\ntask: image-classification\ndata: {train: images.npz, validation: 0.25}\n"
SERIES = "name: odd\ntask: series-classification\ndata: {train: series.npz, validation: 0.25}\n"
TEXTS = "name: odd\ntask: text-classification\ndata: {train: texts.csv, validation: 0.25, text: text, labels: label}\n"
TABLE = "name: odd\ntask: tabular-classification\ndata: {train: table.csv, validation: 0.25, target: label}\n"
NARROW = "{name: encoder, layers: 2, width: 10, heads: 2, vocabulary: 200, dropout: 0.3}"
JOBS = {
    "small-cnn of 3 channels": f"{IMAGES}model: {{name: small-cnn, width: 3, dropout: 0.2}}\noptimize: {{channels_last: true, {ON}}}",
    "resnet of 5": f"{IMAGES}model: {{name: resnet18, width: 5}}\noptimize: {{channels_last: true, micro_batch: 1, {ON}}}",
    "resnet of 5 in bf16": f"{IMAGES}model: {{name: resnet18, width: 5}}\noptimize: {{channels_last: true, precision: bf16, {ON}}}",
    "resnet50 of 3, compiled": f"{IMAGES}model: {{name: resnet50, width: 3}}\noptimize: {{compile: true, {ON}}}",
    "frozen stem": f"{IMAGES}model: {{name: resnet18, width: 7, freeze: {{names: [stem]}}}}\n"
    f"optimize: {{channels_last: true, feature_cache: true, {ON}}}",
    "lstm of 1": f"{SERIES}model: {{name: cnn-lstm, cnn_channels: [3], kernel: 5, lstm_hidden: 1}}\noptimize: {{{ON}}}",
    "lstm of 17": f"{SERIES}model: {{name: cnn-lstm, cnn_channels: [1, 7], kernel: 3, lstm_hidden: 17}}\noptimize: {{{ON}}}",
    "lstm of 17 in bf16": f"{SERIES}model: {{name: cnn-lstm, cnn_channels: [5], kernel: 1, lstm_hidden: 17}}\n"
    f"optimize: {{precision: bf16, {ON}}}",
    "heads of 5": f"{TEXTS}model: {NARROW}\noptimize: {{unpadding: packed, {ON}}}",
    "heads of 5, padded": f"{TEXTS}model: {NARROW}\noptimize: {{unpadding: off, {ON}}}",
    "heads of 5 in bf16": f"{TEXTS}model: {NARROW}\noptimize: {{unpadding: packed, precision: bf16, {ON}}}",
    "tabm of 7": f"{TABLE}model: {{name: tabm, members: 3, hidden: [7, 3], dropout: 0.3}}\noptimize: {{{ON}}}",
    "table of 7": f"{TABLE}model: {{name: mlp, hidden: [7, 3], dropout: 0.3}}\noptimize: {{{ON}}}",
}
BATCHES = {1: 3, 2: 7}
"""By threads: no batch is even, and the last one of an epoch is of another size."""


def write(folder: Path) -> None:
    """Data of odd sizes for all jobs."""
    draw, labels = np.random.default_rng(0), np.arange(44) % 3
    np.savez(folder / "images.npz", images=draw.integers(0, 256, (44, 3, 9, 9)).astype(np.uint8), labels=labels)
    np.savez(folder / "series.npz", x=draw.normal(size=(44, 13, 3)).astype(np.float32), y=labels)
    vocabulary = ["".join(draw.choice(list("abcde"), 3)) for _ in range(40)]
    texts = [" ".join(draw.choice(vocabulary, draw.integers(1, 23))) for _ in labels]
    (folder / "texts.csv").write_text(
        "text,label\n" + "".join(f"{t},l{k}\n" for t, k in zip(texts, labels, strict=True))
    )
    rows = (f"{x:.3f},{'abc'[k]},l{k}\n" for x, k in zip(draw.normal(size=44), labels, strict=True))
    (folder / "table.csv").write_text("number,kind,label\n" + "".join(rows))


@pytest.mark.nightly
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("cap", heap.CAPS)
@pytest.mark.parametrize("name", JOBS)
def test_choices(tmp_path: Path, name: str, cap: str, threads: int) -> None:
    heap.require_checker()
    write(tmp_path)
    train = f"train: {{epochs: 2, batch_size: {BATCHES[threads]}}}"
    (tmp_path / "job.yaml").write_text(
        f"{JOBS[name]}\n{train}\n".replace("optimize: {", f"optimize: {{cpu_threads: {threads}, ")
    )
    done = heap.run_module(
        ["drivetrain", "train", str(tmp_path / "job.yaml"), "--runs", str(tmp_path / "runs")],
        heap.environment(cap, threads),
    )
    if done.returncode == 2 and "optimize.precision" in done.stderr:
        pytest.skip("no bf16 on this instruction set")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "crash: " not in done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("cap", heap.CAPS)
def test_convolutions(cap: str, threads: int) -> None:
    heap.require_checker()
    odd = [
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
    assert answers(odd, cap, threads) == {}
