"""Checks that a job fits the earlier run that it starts from, without torch."""

from __future__ import annotations

from drivetrain.job_spec.data_columns import refuse_features
from drivetrain.pretrained.earlier_run import EarlierModel
from drivetrain.tasks.series.job import SeriesJob


def check(job: SeriesJob, earlier: EarlierModel) -> None:
    """Check that features stay the same, and that none of them is a label, the time or the group."""
    trained_columns, data = earlier.preprocessing.get("features") or (), job.data
    for option, names in {"label": data.label or (), "time": (data.time,), "group": (data.group,)}.items():
        refuse_features(earlier, option, names, trained_columns, "a column that it did not see", "use another run")
    if trained_columns and data.features and list(data.features) != list(trained_columns):
        description = f"is {', '.join(data.features)}, and the earlier run was trained on {', '.join(trained_columns)}"
        earlier.refuse(description, "the same columns in the same order", "remove features", ("data", "features"))
