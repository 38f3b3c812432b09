"""The file of one shard of images, as `drivetrain shard` writes it: the same samples give the same bytes."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROWS = 256
"""Images of a row group of Parquet: what a reader holds in memory at once."""


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
    with parquet.ParquetWriter(file, schema, compression="none", use_dictionary=["label"]) as made:
        for group in _groups(samples, ROWS):
            images = [{"bytes": each.content, "path": each.name} for each in group]
            made.write_table(pyarrow.table([images, [each.label for each in group]], schema=schema))
            count += len(group)
    return count


def tar_bytes(content: int, label: str) -> int:
    """Bytes of one sample in a tar file: two members with their headers."""
    return _padded(content) + _padded(len(label.encode())) + 2 * tarfile.BLOCKSIZE


def _groups(samples: Iterator[Sample], size: int) -> Iterator[list[Sample]]:
    group: list[Sample] = []
    for sample in samples:
        group.append(sample)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _add(opened: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    opened.addfile(member, io.BytesIO(content))


FORMS: Mapping[str, Callable[[Path, Iterator[Sample]], int]] = {"tar": write_tar, "parquet": write_parquet}
"""What writes each format, which is also the ending of the file."""
