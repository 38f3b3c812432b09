"""FLOPs as torch counts them, without torch's compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from drivetrain.models.flop_counter import FlopCounter
from drivetrain.models.networks import cnn
from tests.axes import each_once
from tests.models.packed_texts import build_network, make_batch

NETWORKS: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
    "images": (
        cnn.build(name="small-cnn", channels=3, classes=4, image_size=16, dropout=0.1, width=8, stem="auto"),
        (torch.rand(4, 3, 16, 16),),
    ),
    "texts": (build_network(), make_batch()),
    "recurrent": (nn.LSTM(4, 8), (torch.rand(5, 2, 4),)),
    "attention": (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (torch.rand(2, 5, 16),)),
}


@pytest.mark.parametrize(("inference", "name"), each_once([False, True], NETWORKS))
def test_as_many_as_torch_counts(name: str, *, inference: bool) -> None:
    model, inputs = NETWORKS[name]
    counts = []
    for counter in (FlopCounter(), FlopCounterMode(display=False)):
        with torch.inference_mode() if inference else torch.no_grad(), counter:
            model(*inputs)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1]
    assert (counts[0] > 0) == (name != "recurrent")


def test_no_compiler_is_imported() -> None:
    code = (
        "import sys, torch; from drivetrain.models.flop_counter import count_flops\n"
        "with torch.no_grad(), count_flops() as counter: torch.nn.Linear(2, 3)(torch.ones(1, 2))\n"
        "sys.exit('torch._dynamo' in sys.modules or counter.get_total_flops() != 12)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
