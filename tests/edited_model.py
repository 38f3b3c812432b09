"""A model folder that a stranger has edited, with the digests that fit: what its values may do then is another matter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from drivetrain.pretrained.earlier_run import WEIGHTS
from drivetrain.pretrained.model_config import CONFIG, digest_values
from drivetrain.system.files import hash_file


def write_config(model: Path, config: Mapping[str, object]) -> None:
    """Write config.json into a model folder, with the digests of its values and of the weights beside it."""
    values = {**config, "weights": hash_file(model / WEIGHTS)}
    (model / CONFIG).write_text(json.dumps(values | {"content": digest_values(values)}))
