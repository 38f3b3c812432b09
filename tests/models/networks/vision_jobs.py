"""Jobs with a pretrained vision network, and its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.pretrained.folder import quiet_transformers

MODEL = "{source: transformers, name: saved}"


def job(folder: Path, model: str = MODEL, data: str = "") -> Job:
    text = (
        f"name: t\ntask: image-classification\ndata: {{train: train, validation: held{data}}}\nmodel: {model}\n"
        "train: {epochs: 1, batch_size: 4}\n"
    )
    (folder / "job.yaml").write_text(text)
    return job_spec.load(folder / "job.yaml", [])


TRANSFORMER = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 32,
    "patch_size": 16,
}
STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1]}
FAMILIES: dict[str, dict[str, Any]] = {
    "vit": TRANSFORMER,
    "deit": TRANSFORMER,
    "dinov2": TRANSFORMER,
    "beit": TRANSFORMER,
    "convnext": STAGES | {"num_stages": 2},
    "resnet": STAGES | {"embedding_size": 8},
    "swin": {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 2, "image_size": 32},
}


def save_network(folder: Path, family: str = "vit") -> Path:
    """A small pretrained network as save_pretrained leaves it, with what its images looked like."""
    with quiet_transformers() as transformers:
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(family, **FAMILIES[family])
        transformers.AutoModel.from_config(config).save_pretrained(folder / "saved")
    look = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.3], "do_resize": True}
    (folder / "saved" / "preprocessor_config.json").write_text(json.dumps(look))
    return folder / "saved"
