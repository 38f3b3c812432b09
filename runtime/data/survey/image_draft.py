"""Drafts a spec for images: class folders, a data set with splits, or a manifest of paths and labels."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from runtime.data.images import class_folders, decode, input_shape, split_folders
from runtime.data.labels import listed
from runtime.data.survey import first_values
from runtime.data.survey.request import KEY, SurveyRequest
from runtime.errors import DataError
from runtime.job.draft import Draft, Entry, scalar

TASK, REGRESSION = "image-classification", "image-regression"
OPENED = 64
"""Number of images that are opened; the others are only counted."""
LARGEST = 64
"""Side of the square in the draft, with which a first training shows results in minutes, even on two cores."""
DEEPEST = 3
"""Levels of folders above the class folders that are searched."""


@dataclass
class ImageSurvey:
    """Images, of which some were opened."""

    names: list[str]
    """Full paths."""
    sides: list[int] = field(default_factory=list)
    """Shorter sides of the opened images."""
    grey: bool = True
    oblong: int = 0
    unreadable: list[str] = field(default_factory=list)

    def open_some(self) -> ImageSurvey:
        """Open images that are evenly spaced in the list.

        Raises:
            DataError: if none of them can be decoded.
        """
        chosen = np.unique(np.linspace(0, len(self.names) - 1, OPENED).astype(int))
        with decode.quiet():
            for row in chosen.tolist():
                try:
                    seen = decode.look(self.names[row])
                except decode.UnreadableImage as reason:
                    self.unreadable.append(f"{self.names[row]}: {reason}")
                else:
                    self.sides.append(seen.short_side)
                    self.grey &= seen.grey
                    self.oblong += seen.oblong
        if not self.sides:
            raise DataError(
                f"{KEY}: none of {len(chosen):,} images could be decoded; {self.unreadable[0]}",
                f"images of the kinds {', '.join(decode.FORMATS)}",
                "check how they were written",
            )
        return self


def folder_draft(request: SurveyRequest, folder: Path) -> Draft:
    """The draft for a folder of class folders, or of train/ and val/ with class folders each.

    Raises:
        DataError: if there are no images of two classes.
    """
    request.check_task((TASK,), f"{folder} holds images in folders")
    request.check_no_columns("a folder of images has no columns")
    root, held, test, choices = _root(folder)
    listing = class_folders.read(root, KEY)
    counts = checked_classes(root, listing.labels)
    found = ImageSurvey([os.path.join(root, name) for name in listing.names]).open_some()
    if held is not None:
        wrong = _not_for_validation(held, counts)
        choices += [wrong] * bool(wrong)
        held = None if wrong else held
    if test is not None and (wrong := _not_for_validation(test, counts)):
        choices.append(wrong)
        test = None
    draft = started(found, [first_values.counted(counts), *first_values.single(counts)], "one folder for each class")
    draft.train += first_values.class_weights(counts)
    draft.found += listing.notes
    draft.choices += choices
    train = Entry("train", scalar(request.written(root)), f"{len(listing.names):,} images, a folder for each class")
    tested = [Entry("test", scalar(request.written(test)), "evaluated once, after the training")] if test else []
    draft.data = [train, _validation(request, held, counts), *tested, *draft.data]
    return draft


def _root(folder: Path) -> tuple[Path, Path | None, Path | None, list[str]]:
    """The folder with the class folders, those for validation and test if there are any, and notes on the choice."""
    choices: list[str] = []
    inner, below = folder, class_folders.subfolders(folder, KEY)
    for _ in range(DEEPEST):
        if len(below) != 1 or split_folders.find(inner, KEY):
            break
        inner /= below[0]
        below = class_folders.subfolders(inner, KEY)
    if inner != folder and len(below) > 1:
        choices.append(f"classes are the folders of {inner}, the only folder there")
        folder = inner
    found = split_folders.find(folder, KEY)
    if not found:
        return folder, None, None, choices
    held, test = (folder / name if name else None for name in (found.validation, found.test))
    choices += [f"{folder / name} is not used, since it has no class folders" for name in found.unused]
    return folder / found.train, held, test, choices


def checked_classes(place: Path, labels: Sequence[str]) -> Counter[str]:
    """The number of images of each class.

    Raises:
        DataError: if there are not two, or only one image of each.
    """
    counts = Counter(labels)
    if len(counts) < 2:
        raise DataError(
            f"{KEY}: {place} has {len(labels):,} images of one class: {listed(sorted(counts))}",
            "two classes or more, one folder each",
            "add the images of another class, such as everything that is none of these",
        )
    if max(counts.values()) < 2:
        raise DataError(
            f"{KEY}: {place} has one image of each of {len(counts):,} classes, so none is left for validation",
            "two images of a class or more",
            "add images, or put those of one class into one folder",
        )
    return counts


def _not_for_validation(held: Path, counts: Counter[str]) -> str:
    """Why a folder cannot be used for validation; empty if it can."""
    try:
        strange = sorted(set(class_folders.read(held, KEY).labels) - set(counts))
    except DataError as error:
        return f"{held} is not used: {error.given.removeprefix(f'{KEY}: ')}"
    return f"{held} is not used: it has classes that training lacks: {listed(strange)}" if strange else ""


def _validation(request: SurveyRequest, held: Path | None, counts: Counter[str]) -> Entry:
    if held is None:
        entry = first_values.validation(counts.total(), "images")
        return Entry(entry.key, entry.value, f"{entry.reason}, of each class")
    images = len(class_folders.read(held, KEY).names)
    return Entry("validation", scalar(request.written(held)), f"{images:,} images in a folder of their own")


def started(found: ImageSurvey, about: Sequence[str], reason: str, task: str = TASK) -> Draft:
    """What any draft for images has: the facts, a size, a network and first settings.

    Args:
        found: images, of which some were opened.
        about: what is known of the labels.
        reason: why this task was chosen.
        task: the task.
    """
    sides, total = np.array(found.sides), len(found.names)
    middle = float(np.median(sides))
    fitting, _ = input_shape.choose_size("auto", sides, exact=False)
    size = min(fitting, LARGEST)
    more = f"; up to {fitting} may be more accurate, and is slower" if fitting > size else ""
    kind = "all grey" if found.grey else "in color"
    draft = Draft(task, reason)
    draft.found = [
        f"{total:,} images, {about[0]}",
        f"sizes from a sample of {len(sides):,}: short side {sides.min()} to {sides.max()} px, median {middle:.0f}; {kind}",
        *about[1:],
    ]
    if found.unreadable:
        draft.found.append(f"{len(found.unreadable):,} of those opened cannot be decoded: {found.unreadable[0]}")
    draft.data = [Entry("image_size", str(size), f"median short side {middle:.0f} px{more}")]
    if found.oblong:
        part = f"{found.oblong / len(sides):.0%} are not square"
        draft.data.append(Entry("fit", "crop", f"{part}: crop takes the center; pad and squash keep all of it"))
    if not found.grey and size >= 32 and task == TASK:
        reason = "mirrored photos keep their class; remove flip for text, digits, or left and right"
        draft.data.append(Entry("augment", "{flip: true, crop_padding: 4}", reason))
    network = "small-cnn" if size <= 32 else "{name: small-cnn, width: 16}"
    draft.model = Entry("model", network, "a small network for a first result; try resnet18 with many images")
    draft.train = [
        first_values.epochs(total, 36_000, 5, 30, "images"),
        first_values.batch_size(total, 32),
        *first_values.optimizer("3e-3", "this network"),
    ]
    return draft
