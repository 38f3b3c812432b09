"""Finds pretrained weights of timm, on the hub or in a folder, for its own networks and for the built-in ResNets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

from drivetrain.job import Job
from drivetrain.job.data import Fit
from drivetrain.job.images import ImageJob
from drivetrain.job.model import ImageNetwork, ImageTimm
from drivetrain.pretrained import folder as pretrained
from drivetrain.pretrained import hub_name
from drivetrain.pretrained.expected_input import INTERPOLATIONS, ExpectedInput
from drivetrain.system.files import read_json

KEY = ("model", "pretrained")
_POSSIBLE = "a folder with config.json and model.safetensors of timm, or such a name on the hub"


@dataclass(frozen=True)
class TimmFolder:
    """A folder with weights of timm for the job's network."""

    job: Job
    folder: Path
    origin: str
    """Name and commit on the hub, or the folder."""
    settings: dict[str, Any]
    """`pretrained_cfg` of timm: the form of the images of the training."""

    def expected(self) -> ExpectedInput:
        """Read the input that the weights expect; raises SpecError if the file does not tell it."""
        size, mean, std = (self.settings.get(key) for key in ("input_size", "mean", "std"))
        crop_share = self.settings.get("crop_pct", 1.0)
        if not (
            _are_three_numbers(size)
            and _are_three_numbers(mean)
            and _are_three_numbers(std)
            and isinstance(crop_share, int | float)
            and 0 < crop_share <= 1
        ):
            self.refuse(
                f"{self.folder / 'config.json'} does not say what its images looked like",
                "input_size, mean, std and crop_pct under pretrained_cfg, as timm writes them",
                "use another folder",
            )
        interpolation = str(self.settings.get("interpolation", "bilinear")).lower()
        mode = self.settings.get("crop_mode")
        if interpolation not in (*INTERPOLATIONS, "random") or mode not in (None, "center", "squash"):
            self.refuse(
                f"{self.folder / 'config.json'} has interpolation {interpolation} and crop_mode {mode}",
                f"{', '.join(INTERPOLATIONS)}; center or squash",
                "use another folder",
            )
        if interpolation == "random":  # timm draws one in training only
            interpolation = "bilinear"
        fit: Fit = "squash" if mode == "squash" else "crop"
        return ExpectedInput(
            int(size[2]),
            int(size[0]),
            tuple(mean),
            tuple(std),
            fit,
            interpolation,
            float(crop_share),
            source="its config.json",
        )

    def refuse(self, description: str, possible: str, action: str) -> NoReturn:
        """Raise an error about `model.pretrained`.

        Raises:
            SpecError: always.
        """
        raise self.job.spec_error(KEY, description, possible, action)


def find(job: ImageJob) -> TimmFolder | None:
    """Find the weights that the job's ResNet or network of timm starts from; None if it starts from random weights.

    Raises:
        SpecError: if the weights do not exist, or are those of another network.
    """
    if not isinstance(job.model, ImageNetwork | ImageTimm) or not (name := hub_name.find_weights_name(job)):
        return None
    folder, origin = pretrained.locate(job, name)
    config = read_json(folder / "config.json")
    settings = config.get("pretrained_cfg") if isinstance(config, dict) else None
    timm_weights = TimmFolder(job, folder, origin or str(folder), settings if isinstance(settings, dict) else {})
    architecture = config.get("architecture") if isinstance(config, dict) else None
    if architecture != job.model.name.partition(".")[0]:
        timm_weights.refuse(
            f"{timm_weights.origin} is {architecture or 'no network of timm'}",
            _POSSIBLE,
            f"use one of {job.model.name}",
        )
    return timm_weights


def _are_three_numbers(values: object) -> TypeGuard[list[float]]:
    """Whether these are three numbers above 0."""
    return (
        isinstance(values, list)
        and len(values) == 3
        and all(isinstance(value, int | float) and value > 0 for value in values)
    )
