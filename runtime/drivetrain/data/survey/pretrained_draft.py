"""Turns a draft into one that starts from a pretrained network: frozen, with outputs that are solved on its features."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from drivetrain.data.survey import first_values
from drivetrain.data.survey.request import SurveyRequest
from drivetrain.errors import SpecError
from drivetrain.job.draft import Draft, Entry, quote
from drivetrain.job.model import RESNET_WEIGHTS
from drivetrain.system.run_files import JOB_FILE

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
OPTION = "--pretrained"
TEXTS = "text-classification"
IMAGES = ("image-classification", "image-regression")
KEYS_OF_WEIGHTS = ("image_size", "fit", "augment")
"""Keys of image jobs that are not drafted: the folder of the weights sets size and fit, and augmentation
would give every epoch other features.
"""
FROZEN = "freeze: {body: true}"
REASON = (
    "frozen: one pass over the data, then its outputs are solved in seconds; without `freeze` all of it is fine-tuned, about "
    "three times as long for every epoch, and mostly better"
)


def start_from_pretrained(request: SurveyRequest, draft: Draft) -> Draft:
    """Replace the network of a draft by the pretrained network of the request; returns the same draft, changed.

    Raises:
        SpecError: if the task has no pretrained networks, or the folder is not one.
    """
    name = str(request.pretrained)
    if draft.task != TEXTS and draft.task not in IMAGES:
        raise SpecError(
            f"{OPTION} {name}: {draft.task} has no pretrained networks", f"{TEXTS}, {', '.join(IMAGES)}", "leave it out"
        )
    draft.model = Entry("model", _describe_network(request, name, draft.task), REASON)
    draft.data = [entry for entry in draft.data if entry.key not in KEYS_OF_WEIGHTS]
    draft.train = [
        Entry("epochs", "3", "for fine-tuning; solving takes the place of all of them"),
        Entry("batch_size", "32"),
        *first_values.optimizer("1e-4", "for fine-tuning"),
    ]
    return draft


def _describe_network(request: SurveyRequest, name: str, task: str) -> str:
    """The `model:` of the spec, in YAML notation."""
    if os.path.isdir(name):
        return _describe_folder(request, Path(name), task)
    if not HUB_NAME.fullmatch(name):
        raise SpecError(
            f"{OPTION} {name}: there is no such folder, and no name on the hub is like this",
            "a folder with config.json and model.safetensors, a name such as ORGANIZATION/NETWORK, or a run folder",
            "check the spelling",
        )
    if task in IMAGES and name in RESNET_WEIGHTS:
        return f"{{name: {name}, pretrained: true, {FROZEN}}}"
    if task in IMAGES and name.startswith("timm/"):
        return f"{{source: timm, name: {quote(name.removeprefix('timm/'))}, pretrained: true, {FROZEN}}}"
    return f"{{source: transformers, name: {quote(name)}, {FROZEN}}}"


def _describe_folder(request: SurveyRequest, folder: Path, task: str) -> str:
    """The `model:` of the spec for a folder of weights, or a run folder."""
    path = quote(request.format_path(folder))
    if (folder / JOB_FILE).is_file() or (folder / "model").is_dir():
        return f"{{source: run, name: {path}, {FROZEN}}}"
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(
            f"{OPTION} {folder}: its config.json cannot be read: {error}",
            "a folder in the layout of Hugging Face or timm, or a run folder",
            "name the folder that holds config.json and model.safetensors",
        ) from None
    architecture = config.get("architecture") if isinstance(config, dict) else None
    if task in IMAGES and isinstance(architecture, str):
        return f"{{source: timm, name: {quote(architecture)}, pretrained: {path}, {FROZEN}}}"
    return f"{{source: transformers, name: {path}, {FROZEN}}}"
