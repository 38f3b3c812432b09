"""Checks that a job fits the earlier run that it starts from, without torch."""

from __future__ import annotations

from drivetrain.pretrained.earlier_run import EarlierModel
from drivetrain.tasks.audio.job import AudioClassificationJob


def check(job: AudioClassificationJob, earlier: EarlierModel) -> None:
    """Check that the sampling rate and the bands of the spectrogram stay the same."""
    for key, stored in (("sample_rate", "rate"), ("bands", "bands")):
        value, earlier_value = getattr(job.data, key), earlier.preprocessing.get(stored)
        if key in job.data.model_fields_set and value not in ("auto", earlier_value):
            text = f"is {value}, and the earlier run was trained on {earlier_value}"
            earlier.refuse(text, str(earlier_value), f"write {earlier_value}, or remove the key", ("data", key))
