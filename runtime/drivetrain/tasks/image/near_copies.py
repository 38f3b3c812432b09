"""Recognizes images of one source: augmented copies of an exporter, frames of a video, pictures of a patient.

A network that has seen one of them in training knows the others, so their validation score says nothing. Names of files
and folders show which images belong together. If people also write such names, the images of a source must look more
alike than others of their class. Numbers alone are no sources: unrelated photos are numbered, too.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from drivetrain.data.stateless_random import Ids
from drivetrain.job.data import FOLDERS, NAMES

Distances = Callable[[Ids, Ids], npt.NDArray[np.float64]]
"""Function that measures how different the images of each pair of rows look."""

_EXPORTED = re.compile(
    r"(.+)\.rf\.[0-9A-Za-z]{16,}|.*_original_(.+)_[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(aug(?:mented)?_\d+)_\d+"
)
"""Names of augmented copies by Roboflow, Augmentor and Keras; the matching group is the source."""
_SUFFIX = re.compile(r"[_.](?:jpe?g|png|bmp|webp|tiff?)$", re.IGNORECASE)
_CHANGE = re.compile(
    r"(?<=[^\W_])[ _.-]+(?:aug(?:mented|mentation)?|flip(?:ped|lr|ud)?|[hv]flip|mirror(?:ed)?|rot(?:at(?:ed|ion))?|nois[ey]|blur(?:red)?"
    r"|bright(?:er|ness)?|dark(?:er)?|contrast|crop(?:ped)?|shift(?:ed)?|zoom(?:ed)?|scaled?|shear|jitter|gr[ae]y|orig(?:inal)?"
    r"|copy|copia|copie|kopie|tile|patch|left|right|front|back|side|top|[0-9a-f]{32}|\d+deg)[ _.-]*(?:-?\d+(?:deg)?|\(\d+\))?$",
    re.IGNORECASE,
)
"""End of the name of a copy, a piece or a view: a word for the change, with or without a number."""
_NUMBER = re.compile(r"(?<=[^\W_])(?:[ _.-]*(?P<word>frame|frm|slice|view)s?[ _.-]*|[ _.-]+)\d+$", re.IGNORECASE)
"""End of the name of one of several images of a source, as in clip7_frame_0012."""
_CAMERA = re.compile(
    r"img|dsc[nf]?|dcim|pxl|gopr|mvimg|p|images?|photo|foto|picture|pic|scan|screenshot|file|sample|frame|slice|view"
    r"|(?:img|vid|pxl|dsc)?[ _-]?(?:19|20)\d\d[-_.]?[01]\d[-_.]?[0-3]\d.*",
    re.IGNORECASE,
)
"""Beginnings of names that cameras and programs give to everything, and dates: no sources."""
_ENTITY = re.compile(
    r"(?:patient|subject|subj|sub|person|video|vid|clip|scene|session|seq|sequence|user|case|animal|take|track|burst|object|specimen"
    r"|paciente|sujeto|persona|caso|escena|sesion|proband|szene|sujet|personne)[ _.-]?\w*\d",
    re.IGNORECASE,
)
"""Names that number people, videos and the like."""
_MOST_COPIES = 64
"""Largest number of copies of an image; if there are more, the names share a word by chance."""
_LEAST_SOURCES = 3
"""Smallest number of sources with several images."""
_MOST_PAIRS = 64
"""Largest number of pairs of images that are compared."""
_ALIKE, _SHARED = 0.7, 0.9
"""Largest median difference of images of a source, as a share of the difference between other images of their class;
the second share is for several folders, where the same person can look different.
"""


@dataclass(frozen=True)
class Sources:
    """Source of each image, and the reason in words."""

    names: list[str]
    reason: str

    @property
    def count(self) -> int:
        """Number of sources."""
        return len(set(self.names))


def find(
    paths: Sequence[str], strata: npt.NDArray[np.int64], distances: Distances, *, in_classes: bool, requested: str
) -> Sources | None:
    """Find the sources of images by their paths; None if each image has its own source.

    Args:
        paths: paths relative to the folder of the classes, or to the manifest.
        strata: the class of each image; shape (N,).
        distances: function that compares images, by their positions in `paths`.
        in_classes: whether each path begins with the folder of its class.
        requested: FOLDERS or NAMES if the job says which names count; else empty.
    """
    rows = {path: row for row, path in reversed(list(enumerate(paths)))}
    if len(rows) < len(paths):
        # Rows with the same path are copies, whatever its name.
        paired_rows = np.array(list(rows.values()))
        sources = find(
            list(rows),
            strata[paired_rows],
            lambda first, second: distances(paired_rows[first], paired_rows[second]),
            in_classes=in_classes,
            requested=requested,
        )
        name_of_path = dict(zip(rows, sources.names, strict=True)) if sources else {}
        return Sources([name_of_path[path] for path in paths], sources.reason) if sources else None
    files = [os.path.splitext(path)[0] for path in paths]
    folders = [os.sep.join(path.split(os.sep)[in_classes:-1]) or path for path in paths]
    describe = partial(_describe, paths=paths, distances=distances)
    exported = [_cut_export(name) for name in files]
    copies = [_cut_repeatedly(name, _CHANGE) for name in exported]
    if requested == FOLDERS:
        return Sources(folders, "by the folders in those of the classes")
    if requested == NAMES:
        return Sources([_cut_number(name) for name in copies], "by the names of their files")
    numbered = [_cut_number(name) for name in copies]
    # The coarsest rule that holds counts: the frames of an exported video belong together.
    if _are_several(folders, strata) and (_are_entities(folders) or _look_alike(folders, strata, distances)):
        return describe(folders, reason="by the folders in those of the classes" if in_classes else "by folders")
    if (
        numbered != copies
        and _are_several(numbered, strata)
        and (_have_frame_words(copies, numbered) or _are_entities(numbered) or _look_alike(numbered, strata, distances))
    ):
        return describe(numbered, reason="numbered images of the same beginning")
    if _are_spread(copies, strata) and max(Counter(copies).values()) <= _MOST_COPIES:
        return describe(copies, reason="names of changed copies")
    return describe(exported, reason="names of augmented copies") if len(set(exported)) < len(exported) else None


def count_shared(paths: Sequence[str], other_paths: Sequence[str]) -> int:
    """Count the paths of augmented copies whose source also has copies among `other_paths`."""
    exported = [
        [source for path in group if (source := _cut_export(name := os.path.splitext(path)[0])) != name]
        for group in (paths, other_paths)
    ]
    other_sources = set(exported[1])
    return sum(source in other_sources for source in exported[0])


def _describe(names: list[str], paths: Sequence[str], distances: Distances, reason: str) -> Sources:
    folders = [os.path.dirname(path) for path in paths]
    if not _are_shared(names, folders, distances):
        names = [os.path.join(*pair) for pair in zip(folders, names, strict=True)]
    counts = Counter(names)
    example = next(path for path, name in zip(paths, names, strict=True) if counts[name] > 1)
    return Sources(names, f"{reason}, such as {example}")


def _cut_export(name: str) -> str:
    """Return the source of an exported copy; other names stay whole."""
    match = _EXPORTED.fullmatch(os.path.basename(name))
    return _SUFFIX.sub("", next(filter(None, match.groups()))) if match else name


def _cut_repeatedly(name: str, end: re.Pattern[str]) -> str:
    while (shorter := end.sub("", name)) != name:
        name = shorter
    return name


def _cut_number(name: str) -> str:
    """Return the name of a source without folder, since its images may have several classes; other names stay whole."""
    match = _NUMBER.search(name)
    source = os.path.basename(name[: match.start()]) if match else ""
    return source if source and not _CAMERA.fullmatch(source) else name


def _are_several(names: Sequence[str], strata: npt.NDArray[np.int64]) -> bool:
    """Return whether most images belong to sources with several images."""
    repeated = sum(count for count in Counter(names).values() if count > 1)
    return 2 * repeated >= len(names) and _are_spread(names, strata)


def _are_spread(names: Sequence[str], strata: npt.NDArray[np.int64]) -> bool:
    """Return whether some sources have several images, and most of their classes have several such sources.

    Otherwise the name of the source is the name of the class, or a word that all names of a class begin with.
    """
    repeated = {name for name, count in Counter(names).items() if count > 1}
    sources_of_class = Counter(
        stratum for stratum, name in {*zip(strata.tolist(), names, strict=True)} if name in repeated
    )
    has_several = [count > 1 for count in sources_of_class.values()]
    return len(repeated) >= _LEAST_SOURCES and 2 * sum(has_several) > len(has_several)


def _are_entities(names: Sequence[str]) -> bool:
    """Return whether nearly all sources have names of people, videos and the like."""
    sources = [name for name, count in Counter(names).items() if count > 1]
    return sum(_ENTITY.match(os.path.basename(name)) is not None for name in sources) >= 0.9 * len(sources)


def _have_frame_words(names: Sequence[str], sources: Sequence[str]) -> bool:
    cut = [name for name, source in zip(names, sources, strict=True) if name != source]
    matches = [_NUMBER.search(name) for name in cut]
    return sum(match is not None and match["word"] is not None for match in matches) >= 0.9 * len(cut) > 0


def _look_alike(names: Sequence[str], strata: npt.NDArray[np.int64], distances: Distances) -> bool:
    """Return whether images of a source are more alike than images of different sources of the same class."""
    ordered = sorted(range(len(names)), key=lambda row: (strata[row], names[row], row))
    neighbors = [(first, second) for first, second in pairwise(ordered) if strata[first] == strata[second]]
    within = [(first, second) for first, second in neighbors if names[first] == names[second]]
    between = [(first, second) for first, second in neighbors if names[first] != names[second]]
    return _compare(within, between, distances, 1.0) < _ALIKE


def _are_shared(names: Sequence[str], folders: Sequence[str], distances: Distances) -> bool:
    """Return whether a name in several folders is one source: each folder may number its own images from 0."""
    ordered = sorted(range(len(names)), key=lambda row: (names[row], folders[row], row))
    within = [pair for pair in pairwise(ordered) if names[pair[0]] == names[pair[1]]]
    within = [(first, second) for first, second in within if folders[first] != folders[second]]
    within.sort(key=lambda pair: (folders[pair[0]], folders[pair[1]]))
    between = [(first, second) for (first, _), (_, second) in pairwise(within) if folders[first] != folders[second]]
    between = [(first, second) for first, second in between if names[first] != names[second]]
    return _compare(within, between, distances, 0.0) < _SHARED


def _compare(
    within: list[tuple[int, int]], between: list[tuple[int, int]], distances: Distances, default: float
) -> float:
    """Divide the median distance within sources by the median between sources; `default` for too few pairs."""
    if min(len(within), len(between)) < _LEAST_SOURCES:
        return default
    medians = []
    for pairs in (within, between):
        sampled_pairs = np.array(pairs)[np.unique(np.linspace(0, len(pairs) - 1, _MOST_PAIRS).astype(int))]
        medians.append(np.median(distances(sampled_pairs[:, 0], sampled_pairs[:, 1])))
    return float(medians[0] / medians[1]) if medians[1] else 1.0
