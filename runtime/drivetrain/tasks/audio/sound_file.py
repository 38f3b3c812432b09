"""Decodes sound files: checks each once as a whole, and reads windows of it at the sampling rate of the network.

A window is read where it is needed, so a recording of hours takes no more memory than one of a second.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drivetrain.errors import DataError

try:
    import soundfile
except ImportError as _missing:  # an environment without the extra, or without libsndfile
    raise DataError(
        f"sound files cannot be read here: {_missing}",
        "the package soundfile, which every image has",
        "pip install 'drivetrain[audio]'",
    ) from None

Samples = npt.NDArray[np.float32]
"""Samples of one channel, from -1 to 1 in most files; shape (samples,)."""
BLOCK_FRAMES = 1 << 18
"""Frames that a check decodes at a time: 1 MB of each channel."""
SHORTEST_SECONDS = 0.01
"""Shortest usable sound, in seconds: a single frame of a spectrogram."""
_UNKNOWN_SIZES = (0, 2**32 - 1)
"""Sizes in the header of a WAV file that was written to a pipe."""


class UnreadableSound(Exception):
    """A file that holds no usable sound; the text says why."""


@dataclass(frozen=True)
class Sound:
    """Facts of a sound file that could be decoded."""

    rate: int
    """Samples per second."""
    frames: int
    """Number of samples of each channel."""
    channels: int
    is_silent: bool
    """Whether all samples are the same."""
    content: int
    """Digest of the samples at 16 bits, which a lossless copy in another format shares."""

    @property
    def seconds(self) -> float:
        """Length in seconds."""
        return self.frames / self.rate


def check(path: str) -> Sound:
    """Decode a whole file, block by block.

    Raises:
        UnreadableSound: if it cannot be decoded, is cut off, or has no samples or samples that are no numbers.
    """
    try:
        _check_size(path)
        with soundfile.SoundFile(path) as file:
            return _read_all(file)
    except soundfile.LibsndfileError as error:
        reason = error.error_string.removeprefix("Error : ").rstrip(".")
        raise UnreadableSound(f"it is no sound file that can be read: {reason}") from None
    except OSError as error:
        raise UnreadableSound((error.strerror or str(error)).lower()) from None


def read_window(path: str, start: float, frames: int, rate: int) -> Samples:
    """Read a window of a file as one channel at a sampling rate; silence follows the end of the file.

    Args:
        path: the file.
        start: position of the window in the file, in seconds.
        frames: number of samples to return.
        rate: sampling rate to return.

    Raises:
        UnreadableSound: if the file has changed so that it cannot be read.
    """
    try:
        with soundfile.SoundFile(path) as file:
            file.seek(min(round(start * file.samplerate), file.frames))
            count = -(-frames * file.samplerate // rate)
            samples = _mix_channels(file.read(count, "float32", always_2d=True))
            samples = resample(samples, file.samplerate, rate)[:frames]
    except (soundfile.LibsndfileError, OSError) as error:
        raise UnreadableSound(str(error)) from None
    return np.pad(samples, (0, frames - len(samples)))


def resample(samples: Samples, rate: int, new_rate: int) -> Samples:
    """Change the sampling rate in the frequency domain, without frequencies that the new rate cannot hold."""
    if rate == new_rate or not len(samples):
        return samples
    count = max(1, round(len(samples) * new_rate / rate))
    spectrum = np.fft.rfft(samples.astype(np.float64))[: count // 2 + 1]
    return (np.fft.irfft(spectrum, count) * (count / len(samples))).astype(np.float32)


def _check_size(path: str) -> None:
    """Compare the size of a WAV file with its header: libsndfile reads what is left of a cut file without a word."""
    size = os.path.getsize(path)
    if not size:
        raise UnreadableSound("it is empty (0 bytes)")
    with open(path, "rb") as file:
        start = file.read(12)
    if start[:4] == b"RIFF" and len(start) == 12:
        declared = struct.unpack("<I", start[4:8])[0]
        if declared not in _UNKNOWN_SIZES and declared + 8 > size + 1:
            raise UnreadableSound(f"it is cut off: {size:,} of {declared + 8:,} bytes")


def _read_all(file: soundfile.SoundFile) -> Sound:
    digest, count, low, high = hashlib.blake2b(digest_size=8), 0, np.inf, -np.inf
    digest.update(str(file.samplerate).encode())
    for block in file.blocks(BLOCK_FRAMES, dtype="float32", always_2d=True):
        samples = _mix_channels(block)
        if not np.isfinite(samples).all():
            raise UnreadableSound("it has samples that are no finite numbers")
        count, low, high = count + len(samples), min(low, samples.min()), max(high, samples.max())
        digest.update(np.rint(samples.clip(-1, 1) * 32767).astype("<i2").tobytes())
    if count < file.frames:
        raise UnreadableSound(f"it is cut off: {count:,} of {file.frames:,} samples")
    if count < SHORTEST_SECONDS * file.samplerate:
        raise UnreadableSound(f"it has {count:,} samples: less than {SHORTEST_SECONDS:g} s")
    content = int.from_bytes(digest.digest(), "little", signed=True)
    return Sound(file.samplerate, count, file.channels, bool(low == high), content)


def _mix_channels(frames: npt.NDArray[np.float32]) -> Samples:
    """Average the channels of frames (frames, channels)."""
    return np.ascontiguousarray(frames[:, 0]) if frames.shape[1] == 1 else frames.mean(axis=1)
