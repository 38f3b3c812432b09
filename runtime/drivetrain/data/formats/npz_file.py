"""Reads arrays of an untrusted .npz file without unpickling or writing to disk. Finds the order of their axes."""

from __future__ import annotations

import io
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drivetrain.data import decoded_size
from drivetrain.errors import DataError

WRITE = "write it with numpy.savez_compressed, without Python objects"
"""Advice about a file that cannot be read."""
MAX_HEADER_BYTES = 1 << 16
"""Largest size of a member's header: numpy writes 128 bytes, and refuses more than 10,000 characters."""
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Compressions that numpy writes. Others unpack a few bytes to gigabytes at once, whatever size is requested."""
_FAILURES = (RuntimeError, SyntaxError, TypeError, KeyError, zlib.error, struct.error, tokenize.TokenError)
"""Errors of zipfile and numpy about a damaged member, next to ValueError and OSError."""
Shape = tuple[tuple[int, ...], np.dtype[np.generic]]


@contextmanager
def open_npz(path: Path) -> Iterator[Any]:
    """Open the file as `numpy.load(..., allow_pickle=False)` does.

    Raises:
        ValueError, OSError, EOFError, zipfile.BadZipFile: if it is not an .npz file.
    """
    # numpy would leave the file open if it is no .npz.
    with path.open("rb") as raw:
        if raw.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
            # numpy would allocate the size that its header declares.
            raise ValueError("it is one array (.npy), not an .npz file")
        raw.seek(0)
        with np.load(raw, allow_pickle=False) as file:
            yield file


@contextmanager
def refuse_unreadable(path: Path, key: str, possible: str, action: str) -> Iterator[None]:
    """Raise a DataError if the file cannot be read in the block; `key` is empty for a command line file."""
    try:
        yield
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError, NotImplementedError) as error:
        reason = "it is empty" if isinstance(error, EOFError) else str(error) or type(error).__name__
        if "pickle" in reason:
            reason = "it contains Python objects (pickle), which are never loaded, or is no .npz file"
        raise DataError(f"{path} cannot be read: {reason}", possible, action, key=key) from None


def read_arrays(
    path: Path, key: str, names: Sequence[str], possible: str, save: str, action: str = WRITE
) -> dict[str, npt.NDArray[np.generic]]:
    """Read arrays by their names.

    Args:
        key: the spec key that names the file; empty for a file of the command line.
        possible: the arrays of such a file, for messages.
        save: the call that saves them.
        action: advice on a file that cannot be read.

    Raises:
        DataError: if the file cannot be read, or lacks an array.
    """
    with refuse_unreadable(path, key, possible, action), open_npz(path) as file:
        if missing := [name for name in names if name not in file.files]:
            description = f"{path} has the arrays {', '.join(file.files) or 'none'}"
            raise DataError(description, possible, f"save {' and '.join(missing)} too: {save}", key=key)
        return {name: member(file, name, path, key) for name in names}


def member(file: Any, name: str, path: Path, key: str) -> npt.NDArray[np.generic]:
    """Read the array with this name.

    Raises:
        DataError: if it takes more memory than is free.
        ValueError: if it is not an array, or holds Python objects.
    """
    try:
        entry = name if name in file.zip.namelist() else f"{name}.npy"
        shape, kind = _read_header(file.zip, entry)
        # Python's integers do not overflow; the product of numpy would.
        decoded_size.check_fits(math.prod(map(abs, shape)) * kind.itemsize, f"array `{name}` of {path}", key)
        value = file[name]
    except MemoryError as error:
        raise ValueError(f"{name} does not fit into memory: {str(error) or 'out of memory'}") from None
    except _FAILURES as error:
        raise ValueError(f"{name} cannot be read: {str(error) or type(error).__name__}") from None
    if not isinstance(value, np.ndarray):
        raise ValueError(f"{name} is not an array")
    return value


def empty_cells(array: npt.NDArray[Any], cells: Collection[str]) -> npt.NDArray[Any]:
    """Replace numbers that are in `cells`, the texts of `data.missing`, with NaN."""
    numbers = []
    for cell in cells:
        with suppress(ValueError):
            numbers.append(float(cell))
    if not numbers or array.dtype.kind not in "iuf":
        return array
    with np.errstate(over="ignore"):
        is_missing = np.isin(array, np.array(numbers).astype(array.dtype if array.dtype.kind == "f" else np.float64))
    if not is_missing.any():
        return array
    filled = array.astype(array.dtype if array.dtype.kind == "f" else np.float64)
    filled[is_missing] = np.nan
    return filled


def shapes(path: Path) -> dict[str, Shape]:
    """Read the shape and dtype of every array of a file, from the headers only.

    Raises:
        ValueError: if a member is not an array.
        OSError, zipfile.BadZipFile: if the file cannot be read.
    """
    with zipfile.ZipFile(path) as archive:
        try:
            return {name.removesuffix(".npy"): _read_header(archive, name) for name in archive.namelist()}
        except (MemoryError, *_FAILURES) as error:
            raise ValueError(str(error) or type(error).__name__) from None


def _read_header(archive: zipfile.ZipFile, entry: str) -> Shape:
    """Read the shape and dtype of a member; only its first bytes are unpacked."""
    info = archive.getinfo(entry)
    if info.compress_type not in COMPRESSIONS:
        raise ValueError(f"{entry} is compressed in a way that numpy does not write")
    with archive.open(info) as opened:
        file = io.BytesIO(opened.read(MAX_HEADER_BYTES))
    version = np.lib.format.read_magic(file)
    read_array_header = (
        np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    )
    shape, _, kind = read_array_header(file)
    return shape, kind


def find_axis_order(shape: Sequence[int], path: Path, key: str) -> str:
    """Return the order of the axes of `x`: time-channels if the second is longer than the last.

    Raises:
        DataError: if it is not longer, and there are several channels either way.
    """
    if shape[2] == 1 or shape[1] > shape[2]:
        return "time-channels"
    if shape[1] == 1:
        return "channels-time"
    raise DataError(
        f"`x` of {path} has shape {tuple(shape)}: windows of {shape[1]} rows of {shape[2]} channels, or of "
        f"{shape[2]} rows of {shape[1]} channels",
        "(N, T, channels) with more rows than channels, or the order of the axes in data.axes",
        "set data.axes: channels-time if the last axis is the time, else time-channels",
        key=key,
    )
