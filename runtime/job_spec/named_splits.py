"""Names the splits of a job whose data is a folder with train/, val/ and test/, and checks the data of the final test."""

from __future__ import annotations

import os

from runtime.data.images import split_folders
from runtime.errors import SpecError
from runtime.job import Job
from runtime.job.data import Data
from runtime.job.images import ImageJob


def named(job: Job) -> Job:
    """The job with the paths of the splits that its training folder has; what the spec names stays.

    Raises:
        DataError: if it is not clear whether folders are splits or classes.
    """
    if not isinstance(job, ImageJob):
        return job
    place = job.document.place(("data", "train"))
    found = split_folders.find(job.resolve(job.data.train), f"{place}: data.train")
    if found is None:
        return job
    root, given = job.data.train, job.data.model_fields_set
    update = {"train": os.path.join(root, found.train)}
    told = [f"{root} has the splits of a data set: {found.train} for training"]
    for key, name, use in (
        ("validation", found.validation, "for validation"),
        ("test", found.test, "for the final test"),
    ):
        decided = "fold" if key == "validation" and job.data.fold else key
        if name and decided not in given:
            update[key] = os.path.join(root, name)
            told.append(f"{name} {use}")
        elif name:
            told.append(f"{name} is not used, since data.{decided} is {getattr(job.data, decided)!r}")
    made = job.model_copy(update={"data": job.data.model_copy(update=update)})
    made._notes = (", ".join(told),)
    return made


def check_test(job: Job) -> None:
    """Check that the data of the final test is not that of training or validation.

    Raises:
        SpecError: if it is.
    """
    if not isinstance(job.data, Data) or job.data.test is None:
        return
    test = os.path.realpath(job.resolve(job.data.test))
    for key in ("train", "validation"):
        path = getattr(job.data, key)
        if isinstance(path, str) and os.path.realpath(job.resolve(path)) == test:
            given = f"is {job.data.test!r}, the same as data.{key}"
            action = "name other data, or leave it out: the validation data is evaluated in any case"
            raise SpecError([job.problem(("data", "test"), given, "data that the training does not see", action)])
