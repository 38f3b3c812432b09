"""Writes a folder of class folders as shards, tar or Parquet, in random order, with a list of their hashes.

They go to a folder of this machine or to an address in an object store; a file is there whole or not at all. The bytes
of a shard depend on the files and the seed alone. So the same command after a kill makes the same shards, and writes
only those that are not there.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from drivetrain.data import stateless_random
from drivetrain.data.images import class_folders, decode
from drivetrain.data.source import BadSample, check_bad_samples
from drivetrain.data.streaming.shard import LIST_NAME, ListedShard, ShardList, parse_list
from drivetrain.errors import DataError, SpecError
from drivetrain.storage.object_store import ObjectStore, StoredObject
from drivetrain.storage.remote_address import POSSIBLE, BadAddress, is_remote, parse
from drivetrain.system.files import blame_storage, hash_file, make_folder, sync_file, sync_folder


@dataclass(frozen=True)
class LocalFolder:
    """A folder of this machine, with the methods of an ObjectStore that writing needs."""

    path: Path

    def objects(self) -> list[StoredObject]:
        """All files."""
        return [StoredObject(file.name, file.stat().st_size, "") for file in self.path.iterdir() if file.is_file()]

    def find(self, name: str) -> bytes | None:
        """The content of a file; None if it is not there."""
        path = self.path / name
        return path.read_bytes() if path.is_file() else None

    def put_file(self, name: str, file: BinaryIO) -> None:
        """Copy a file, and give it its name once it is whole; raises StorageError if it cannot be written."""
        new = self.path / f".{name}.writing"
        try:
            with blame_storage(self.path):
                with new.open("wb") as copy:
                    shutil.copyfileobj(file, copy)
                sync_file(new)
                os.replace(new, self.path / name)
                sync_folder(self.path)
        finally:
            new.unlink(missing_ok=True)


Destination = LocalFolder | ObjectStore


def open_destination(text: str) -> Destination:
    """The place that a command line names.

    Raises:
        SpecError: if it is no place to write to.
        StorageError: if a folder cannot be made.
    """
    if not is_remote(text):
        folder = Path(os.path.expanduser(text))
        make_folder(folder)
        return LocalFolder(folder)
    try:
        address = parse(text)
    except BadAddress as error:
        raise SpecError(f"--to: {error.given}", error.possible, error.action) from None
    if not address.writable:
        raise SpecError(f"--to: {text} cannot be written to", f"a folder, or {POSSIBLE}", "name one of these")
    return ObjectStore(address)


MAX_BAD_SHARE = 0.05
"""Largest share of images that may be left out because they cannot be decoded, as in a job."""
KEY = "shard"
ROW_GROUP_IMAGES = 256
"""Images of a row group of Parquet: what a reader holds in memory at once."""


@dataclass(frozen=True)
class Image:
    """One file, with its class."""

    path: str
    label: str
    bytes: int
    changed: int
    """Time, in nanoseconds."""


@dataclass(frozen=True)
class Sample:
    """One encoded image, with its class."""

    name: str
    label: str
    content: bytes


def write_tar(file: Path, samples: Iterator[Sample]) -> int:
    """Write a tar file as WebDataset does, 000000-name.jpg with 000000-name.cls beside it; returns how many samples.

    Raises:
        OSError: if it cannot be written.
    """
    count = 0
    with tarfile.open(file, "w") as opened:
        for count, sample in enumerate(samples, 1):
            # A dot would end the name of the sample, and files of two classes can have the same name.
            name = f"{count - 1:06}-{Path(sample.name).stem.replace('.', '_')}"
            _add(opened, f"{name}{Path(sample.name).suffix.lower()}", sample.content)
            _add(opened, f"{name}.cls", sample.label.encode())
    return count


def write_parquet(file: Path, samples: Iterator[Sample]) -> int:
    """Write a Parquet file with the columns `image` (bytes and name, as Hugging Face datasets have it) and `label`.

    Images are not compressed again. Returns how many samples.

    Raises:
        OSError: if it cannot be written.
    """
    import pyarrow
    from pyarrow import parquet

    image = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    schema = pyarrow.schema([("image", image), ("label", pyarrow.string())])
    count = 0
    with parquet.ParquetWriter(file, schema, compression="none", use_dictionary=["label"]) as writer:
        while group := list(islice(samples, ROW_GROUP_IMAGES)):
            images = [{"bytes": sample.content, "path": sample.name} for sample in group]
            writer.write_table(pyarrow.table([images, [sample.label for sample in group]], schema=schema))
            count += len(group)
    return count


def _pad(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _add(opened: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    opened.addfile(member, io.BytesIO(content))


FORMS: Mapping[str, Callable[[Path, Iterator[Sample]], int]] = {"tar": write_tar, "parquet": write_parquet}
"""What writes each format, which is also the ending of the file."""
ENDS = tuple(f".{form}" for form in FORMS)


def write(
    source: Path, target: Destination, size: int, seed: int, say: Callable[[str], None], form: str = "tar"
) -> ShardList:
    """Write shards of about `size` bytes; those that are there already stay.

    Args:
        source: a folder with one folder for each class.
        size: bytes after which a shard is full.
        seed: of the order of the images.
        form: of the shards, a key of `FORMS`.

    Raises:
        DataError: if there are no images, too many cannot be decoded, or the target holds other shards.
        StorageError: if a shard cannot be written.
    """
    listing = class_folders.read(source, KEY)
    for note in listing.notes:
        say(note)
    pairs = zip(listing.names, listing.labels, strict=True)
    images = [Image(name, label, *_read_stamp(source / name)) for name, label in pairs]
    order = stateless_random.make_generator(seed, "shards").permutation(len(images))
    groups = _divide_images([images[index] for index in order.tolist()], size)
    source_digest, shards = _digest(images, size, seed, form), list[ListedShard]()
    present_sizes = {entry.name: entry.bytes for entry in target.objects() if "/" not in entry.name}
    before = _read_earlier(target, present_sizes, source_digest)
    bad: list[BadSample] = []
    with tempfile.TemporaryDirectory(prefix="drivetrain-shard-") as folder:
        # Before the first shard: a start after a kill must see whose shards these are.
        if not before:
            _put_list(target, ShardList(source_digest), Path(folder))
        for number, group in enumerate(groups):
            file = Path(folder) / f"{number:06}.{form}"
            shard = before.get(file.name)
            if shard is None or present_sizes.get(file.name) != shard.bytes:
                shard = _write_shard(source, group, file, bad, target, form)
                check_bad_samples(bad, len(images), MAX_BAD_SHARE, KEY)
                say(f"{file.name}: {shard.samples:,} images, {number + 1:,} of {len(groups):,} shards")
            shards.append(shard)
            if file.exists():
                file.unlink()
                # Of many shards the list is long, and what is not in it is only written again.
                if number % (1 + number // 100) == 0:
                    _put_list(target, ShardList(source_digest, tuple(shards)), Path(folder))
        written_list = ShardList(source_digest, tuple(shards), complete=True)
        _put_list(target, written_list, Path(folder))
    for line in check_bad_samples(bad, len(images), MAX_BAD_SHARE, KEY):
        say(line)
    return written_list


def _read_earlier(target: Destination, names: Iterable[str], source: str) -> dict[str, ListedShard]:
    """Return the shards of an earlier, perhaps unfinished, start among these files; raises DataError if they are of other data."""
    content = target.find(LIST_NAME)
    earlier = parse_list(content) if content is not None else None
    if earlier is None:
        if existing := next((name for name in names if name.endswith(ENDS)), ""):
            raise DataError(
                f"--to: there is {existing} already, which this command has not written",
                "an empty place, or one that the same command has begun",
                "choose another place",
            )
        return {}
    if earlier.source != source:
        raise DataError(
            "--to: the shards there are of other images, another size, seed or format (images with the same names, bytes and times are the same)",
            "an empty place, or one that the same command has begun",
            "choose another place, or remove what is there",
        )
    return {shard.name: shard for shard in earlier.shards}


def _divide_images(images: Sequence[Image], size: int) -> list[list[Image]]:
    """Divide images among shards of about `size` bytes, in their order."""
    groups: list[list[Image]] = [[]]
    used_bytes = 0
    for image in images:
        # Two members of a tar file with their headers; in Parquet it is less.
        needed = _pad(image.bytes) + _pad(len(image.label.encode())) + 2 * tarfile.BLOCKSIZE
        if groups[-1] and used_bytes + needed > size:
            groups.append([])
            used_bytes = 0
        groups[-1].append(image)
        used_bytes += needed
    return groups


def _write_shard(
    source: Path, group: Sequence[Image], file: Path, bad: list[BadSample], target: Destination, form: str
) -> ListedShard:
    """Write a shard without the images that cannot be decoded, and hand it over."""
    with blame_storage(file), decode.quiet():
        samples = FORMS[form](file, _readable(source, group, bad))
    _put(target, file)
    return ListedShard(file.name, file.stat().st_size, hash_file(file), samples)


def _readable(source: Path, group: Sequence[Image], bad: list[BadSample]) -> Iterator[Sample]:
    """Yield the images that can be decoded; the others are added to `bad`."""
    for image in group:
        path = source / image.path
        try:
            content = path.read_bytes()
            decode.look(content)
        except (OSError, decode.UnreadableImage) as error:
            bad.append(BadSample(str(path), getattr(error, "strerror", None) or str(error)))
            continue
        yield Sample(Path(image.path).name, image.label, content)


def _put_list(target: Destination, written_list: ShardList, folder: Path) -> None:
    file = folder / LIST_NAME
    file.write_bytes(written_list.to_bytes())
    _put(target, file)


def _put(target: Destination, file: Path) -> None:
    with file.open("rb") as opened:
        target.put_file(file.name, opened)


def _digest(images: Sequence[Image], size: int, seed: int, form: str) -> str:
    rows = [[image.path, image.label, image.bytes, image.changed] for image in images]
    content = [rows, size, seed] if form == "tar" else [rows, size, seed, form]  # tar shards were the first
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _read_stamp(path: Path) -> tuple[int, int]:
    """Bytes and time of a file."""
    try:
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns
    except OSError:  # gone since it was listed, or a broken link: it is left out when it is read
        return 0, 0
