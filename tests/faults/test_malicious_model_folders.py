"""Model folders and pretrained networks made to do harm: neither a file of the host nor the hub is opened for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from drivetrain.errors import CheckpointError, DrivetrainError, SpecError
from drivetrain.models import saved_model
from drivetrain.pretrained import families
from drivetrain.pretrained import folder as pretrained_folder
from drivetrain.system.files import read_json, write_json
from tests import tiny
from tests.edited_model import write_config
from tests.faults.malicious_files import MOST, WEIGHTS, Watcher, model_folder, peak, watcher
from tests.messages import saying

__all__ = ["watcher"]


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_of_a_model_folder(tmp_path: Path, watcher: Watcher, case: str) -> None:
    folder = model_folder(tmp_path)
    (folder / "model.safetensors").write_bytes(WEIGHTS[case](tmp_path / "canary"))
    before = peak()
    with watcher(tmp_path), pytest.raises(DrivetrainError):
        saved_model.load(folder)
    assert peak() - before < MOST
    assert not (tmp_path / "canary").exists()


def test_the_model_folder_is_good_before_it_is_made_bad(tmp_path: Path, watcher: Watcher) -> None:
    folder = model_folder(tmp_path)
    with watcher(tmp_path):
        assert saved_model.load(folder).task == "image-classification"


BUILDERS: dict[str, dict[str, Any]] = {
    "a builder by its module": {"builder": "os.system", "arguments": {"command": "touch canary"}},
    "a builder with a path": {"builder": "../../evil", "arguments": {}},
    "another argument": {"arguments": {"__class__": "os.system"}},
    "a network of a petabyte": {"arguments": {"width": 2**40}},
    "a network of a gigabyte": {"arguments": {"width": 1000}},
    "code of somebody's own": {
        "builder": "own",
        "code": {"file": "evil.py"},
        "arguments": {"file": "evil.py", "factory": "build", "arguments": {}, "inputs": []},
    },
}


@pytest.mark.parametrize("case", BUILDERS)
def test_the_configuration_of_a_model_folder(tmp_path: Path, watcher: Watcher, case: str) -> None:
    folder = model_folder(tmp_path)
    (folder / "code").mkdir()
    (folder / "code" / "evil.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w')")
    config = read_json(folder / "config.json")
    changed = BUILDERS[case]
    write_config(
        folder,
        config
        | changed
        | {"arguments": (config["arguments"] if "builder" not in changed else {}) | changed["arguments"]},
    )
    before = peak()
    with watcher(tmp_path), pytest.raises(CheckpointError):
        saved_model.load(folder)
    assert peak() - before < MOST
    assert not (tmp_path / "canary").exists()


ELSEWHERE: dict[str, dict[str, Any]] = {
    "a pickle for timm": {
        "model_type": "timm_wrapper",
        "architecture": "resnet18",
        "model_args": {"checkpoint_path": "x"},
    },
    "a network of timm in another": {"model_type": "dpt", "backbone_config": {"model_type": "timm_backbone"}},
    "a network of the hub in another": {"model_type": "dpt", "use_pretrained_backbone": True, "backbone": "a/b"},
    "attention from the hub": {"model_type": "vit", "attn_implementation": "a/b"},
    "attention from the hub by its other name": {"model_type": "vit", "_attn_implementation": "flash_attention_2|a/b"},
    "a network of timm by default": {"model_type": "detr"},
    "a network of timm in a folder": {"model_type": "detr", "backbone": "local-dir:/etc"},
}
NAMING_BACKBONES = (
    *("dpt", "upernet", "maskformer", "mask2former", "oneformer", "omdet-turbo", "rt_detr", "zoedepth", "vitmatte"),
    *(
        "tvp",
        "depth_anything",
        "grounding-dino",
        "deformable_detr",
        "conditional_detr",
        "dab-detr",
        "d_fine",
        "rf_detr",
    ),
)
"""Families whose configuration may name another network by `backbone` alone."""
ELSEWHERE |= {f"another network in {family}": {"model_type": family, "backbone": "a/b"} for family in NAMING_BACKBONES}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_a_configuration_that_would_load_from_elsewhere(tmp_path: Path, watcher: Watcher, case: str) -> None:
    """Of a model folder and of a pretrained network: neither a file of the host nor the hub is opened for it."""
    folder = model_folder(tmp_path)
    config = read_json(folder / "config.json")
    arguments = {"config": ELSEWHERE[case], "pooling": "cls", "dropout": 0.0}
    for builder, outputs in (("vision", {"classes": 3, "width": 8}), ("texts", {"outputs": {"": 3}})):
        write_config(folder, config | {"builder": builder, "arguments": arguments | outputs})
        with watcher(tmp_path), pytest.raises(CheckpointError, check=saying("load-something-elsewhere")):
            saved_model.load(folder)
    write_json(folder / "config.json", ELSEWHERE[case])
    with watcher(tmp_path), pytest.raises(SpecError, check=saying("load-something-elsewhere")):
        pretrained_folder.find(tiny.job(), str(folder))


@pytest.mark.parametrize("family", [*NAMING_BACKBONES, "bert"])
def test_a_local_folder_asks_no_hub_even_for_an_unknown_entry(
    tmp_path: Path, watcher: Watcher, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(families, "find_external_entry", lambda config: "")
    write_json(tmp_path / "config.json", {"model_type": family, "backbone": "somebody/else"})
    safetensors.torch.save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with watcher(tmp_path), pytest.raises(SpecError):
        pretrained_folder.find(tiny.job(), str(tmp_path)).network()


@pytest.mark.parametrize("name", ["hf-hub:a/b", "local-dir:/etc"])
def test_a_network_of_timm_that_is_an_address(tmp_path: Path, watcher: Watcher, name: str) -> None:
    folder = model_folder(tmp_path)
    config = read_json(folder / "config.json")
    arguments = {"name": name, "classes": 3, "channels": 1, "image_size": 8, "dropout": 0.0}
    write_config(folder, config | {"builder": "timm", "arguments": arguments})
    with watcher(tmp_path), pytest.raises(CheckpointError, check=saying("is-not-name-of-architecture")):
        saved_model.load(folder)
