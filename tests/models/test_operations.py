"""The FLOPs of a network per sample are the same as in torch's counter, and reported with the stem."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from drivetrain.job.model import Freeze
from drivetrain.job.workload import format_flop
from drivetrain.models import operations
from drivetrain.models.build import BuiltModel
from drivetrain.models.networks import cnn
from tests.messages import says_only


def network(name: str, **more: Any) -> BuiltModel:
    arguments = {
        "name": name,
        "channels": 3,
        "classes": 5,
        "image_size": 64,
        "dropout": 0.0,
        "width": None,
        "stem": "auto",
    }
    arguments |= more
    return BuiltModel(cnn.build(**arguments), "images", arguments, Freeze())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "side", "stem"),
    [
        ("resnet18", 32, "small"),
        ("resnet18", 33, "large"),
        ("resnet50", 35, "auto"),
        ("resnet34", 97, "auto"),
        ("small-cnn", 9, "auto"),
        ("small-cnn", 28, "auto"),
    ],
)
def test_operations_are_those_that_torch_counts(name: str, side: int, stem: str) -> None:
    module = network(name, image_size=side, stem=stem, width=16).module.eval()
    assert isinstance(module, cnn.ResNet | cnn.SmallCnn)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(torch.zeros(1, 3, side, side))
    assert operations.count_forward_flop(module, side) == counter.get_total_flops()


def test_an_automatic_stem_is_noted_with_its_cost() -> None:
    text = operations.describe_flop(network("resnet18"))
    assert says_only(text, "resnet18-small-stem-image", 64, 96, "13.33", "888.3")
    costs = operations.count_stem_flop(network("resnet18"))
    assert costs is not None, "the advice of the report reads these"
    assert (costs["name"], format_flop(costs["small"]), format_flop(costs["large"])) == (  # type: ignore[arg-type]
        "resnet18",
        "13.33 GFLOP",
        "888.3 MFLOP",
    )


@pytest.mark.parametrize(
    ("settings", "description"),
    [
        (
            {"image_size": 224},
            "resnet18 with the large stem, as image_size 224 is more than 96, 10.88 GFLOP per training sample",
        ),
        ({"stem": "small"}, "resnet18 with the small stem, as set in the job, 13.33 GFLOP per training sample"),
        ({"stem": "large"}, "resnet18 with the large stem, as set in the job, 888.3 MFLOP per training sample"),
    ],
)
def test_a_large_stem_or_one_that_was_asked_for(settings: dict[str, Any], description: str) -> None:
    assert operations.describe_flop(network("resnet18", **settings)) == description
    assert operations.count_stem_flop(network("resnet18", **settings)) is None


def test_other_networks() -> None:
    assert re.fullmatch(
        r"small-cnn, [\d.]+ MFLOP per training sample", operations.describe_flop(network("small-cnn")) or ""
    )
    assert operations.describe_flop(BuiltModel(torch.nn.Linear(2, 2), "own", {}, Freeze())) is None


def test_a_note_uses_no_random_numbers() -> None:
    """The weights and all later random numbers are the same as without the message."""
    resnet = network("resnet18", width=8)
    before = torch.random.get_rng_state()
    operations.describe_flop(resnet)
    assert torch.equal(before, torch.random.get_rng_state())
