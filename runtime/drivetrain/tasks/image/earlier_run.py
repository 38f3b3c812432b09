"""Checks that a job fits the earlier run that it starts from, without torch."""

from __future__ import annotations

from drivetrain.pretrained.earlier_run import EarlierModel
from drivetrain.tasks.image.job import ImageJob


def check(job: ImageJob, earlier: EarlierModel) -> None:
    """Check channels and `fit` of images, and their size unless the network accepts any size."""
    defaults = {"channels": None, "fit": "crop"} | ({} if earlier.builder == "images" else {"image_size": None})
    for key, default in defaults.items():
        value, earlier_value = getattr(job.data, key), earlier.preprocessing.get(key, default)
        if key in job.data.model_fields_set and value not in ("auto", earlier_value):
            text = f"is {value}, and the earlier run was trained on {earlier_value}"
            earlier.refuse(text, str(earlier_value), f"write {earlier_value}, or remove the key", ("data", key))
