"""Writes a folder of class folders as shards, tar or Parquet, in random order, with a list of their hashes.

The bytes of a shard depend on the files and the seed alone. So the same command after a kill makes the same shards, and
writes only those that are not there.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.data import bad_samples, stateless_random
from runtime.data.bad_samples import BadSample
from runtime.data.images import class_folders, decode
from runtime.data.streaming import shard_file, shard_list
from runtime.data.streaming.destination import Destination
from runtime.data.streaming.shard_file import FORMS, Sample
from runtime.data.streaming.shard_list import ListedShard, ShardList
from runtime.errors import DataError
from runtime.system.files import sha256, storage_error

BAD = 0.05
"""Largest share of images that may be left out because they cannot be decoded, as in a job."""
KEY = "shard"
ENDS = tuple(f".{form}" for form in FORMS)


@dataclass(frozen=True)
class Image:
    """One file, with its class."""

    path: str
    label: str
    bytes: int
    changed: int
    """Time, in nanoseconds."""


def write(
    source: Path, target: Destination, size: int, seed: int, say: Callable[[str], None], form: str = "tar"
) -> ShardList:
    """Write shards of about `size` bytes; those that are there already stay.

    Args:
        source: a folder with one folder for each class.
        target: where they go.
        size: bytes after which a shard is full.
        seed: of the order of the images.
        say: reports progress.
        form: of the shards, a key of `FORMS`.

    Returns:
        The list of all shards.

    Raises:
        DataError: if there are no images, too many cannot be decoded, or the target holds other shards.
        StorageError: if a shard cannot be written.
    """
    listing = class_folders.read(source, KEY)
    for note in listing.notes:
        say(note)
    images = [
        Image(name, label, *_seen(source / name)) for name, label in zip(listing.names, listing.labels, strict=True)
    ]
    order = stateless_random.generator(seed, "shards").permutation(len(images))
    groups = _cut([images[index] for index in order.tolist()], size)
    made = ShardList(_digest(images, size, seed, form))
    before = _before(target, made.source)
    there = target.sizes()
    bad: list[BadSample] = []
    with tempfile.TemporaryDirectory(prefix="drivetrain-shard-") as folder:
        if not before:  # it says whose the shards are
            _put_list(target, made, Path(folder))
        for number, group in enumerate(groups):
            file = Path(folder) / f"{number:06}.{form}"
            known = before.get(file.name)
            if known is None or there.get(file.name) != known.bytes:
                known = _written(source, group, file, bad, target, form)
                bad_samples.check(bad, len(images), BAD, KEY)
                say(f"{file.name}: {known.samples:,} images, {number + 1:,} of {len(groups):,} shards")
            made = ShardList(made.source, (*made.shards, known), complete=False)
            if file.exists():
                file.unlink()
                # Of many shards the list is long, and what is not in it is only written again.
                if number % (1 + number // 100) == 0:
                    _put_list(target, made, Path(folder))
        made = ShardList(made.source, made.shards, complete=True)
        _put_list(target, made, Path(folder))
    for line in bad_samples.check(bad, len(images), BAD, KEY):
        say(line)
    return made


def _before(target: Destination, source: str) -> dict[str, ListedShard]:
    """The shards of an earlier, perhaps unfinished, start.

    Raises:
        DataError: if they are of other data.
    """
    content = target.read(shard_list.NAME)
    known = shard_list.parse(content) if content is not None else None
    if known is None:
        if taken := next((name for name in target.sizes() if name.endswith(ENDS)), ""):
            raise DataError(
                f"--to: there is {taken} already, which this command has not written",
                "an empty place, or one that the same command has begun",
                "choose another place",
            )
        return {}
    if known.source != source:
        raise DataError(
            "--to: the shards there are of other images, another size, seed or format (images with the same names, bytes and times are the same)",
            "an empty place, or one that the same command has begun",
            "choose another place, or remove what is there",
        )
    return {each.name: each for each in known.shards}


def _cut(images: Sequence[Image], size: int) -> list[list[Image]]:
    """The images of each shard."""
    groups: list[list[Image]] = [[]]
    taken = 0
    for image in images:
        needed = shard_file.tar_bytes(image.bytes, image.label)  # in Parquet it is less
        if groups[-1] and taken + needed > size:
            groups.append([])
            taken = 0
        groups[-1].append(image)
        taken += needed
    return groups


def _written(
    source: Path, group: Sequence[Image], file: Path, bad: list[BadSample], target: Destination, form: str
) -> ListedShard:
    """Write a shard without the images that cannot be decoded, and hand it over."""
    try:
        with decode.quiet():
            samples = FORMS[form](file, _readable(source, group, bad))
    except OSError as error:
        raise storage_error(file, error) from None
    target.put(file.name, file)
    return ListedShard(file.name, file.stat().st_size, sha256(file), samples)


def _readable(source: Path, group: Sequence[Image], bad: list[BadSample]) -> Iterator[Sample]:
    """The images that can be decoded; the others are added to `bad`."""
    for image in group:
        path = source / image.path
        try:
            content = path.read_bytes()
            decode.look(content)
        except (OSError, decode.UnreadableImage) as error:
            bad.append(BadSample(str(path), getattr(error, "strerror", None) or str(error)))
            continue
        yield Sample(Path(image.path).name, image.label, content)


def _put_list(target: Destination, made: ShardList, folder: Path) -> None:
    file = folder / shard_list.NAME
    file.write_bytes(made.to_bytes())
    target.put(shard_list.NAME, file)


def _digest(images: Sequence[Image], size: int, seed: int, form: str) -> str:
    rows = [[image.path, image.label, image.bytes, image.changed] for image in images]
    known = [rows, size, seed] if form == "tar" else [rows, size, seed, form]  # tar shards were the first
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()


def _seen(path: Path) -> tuple[int, int]:
    """Bytes and time of a file."""
    try:
        found = os.stat(path)
        return found.st_size, found.st_mtime_ns
    except OSError:  # gone since it was listed, or a broken link: it is left out when it is read
        return 0, 0
