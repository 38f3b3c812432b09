"""Sample sounds: one second each, of one of six kinds, at any pitch, loudness and distance from the start, in noise.

The kinds differ in how the sound moves in time: a chirp up and a chirp down have the same mean spectrum, and so have a
steady tone, a trembling one and one that is struck. A model of mean and deviation of each band confuses them.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

KINDS = ("chirp down", "chirp up", "clicks", "steady tone", "struck tone", "trembling tone")
RATE = 16_000
NEW_SOUNDS = 12
"""Number of sounds in the folder without labels."""
Samples = npt.NDArray[np.float64]


def write(folder: Path, size: int, seed: int) -> list[Path]:
    """Write train/, with a folder of WAV files for each kind, and new/, without kinds."""
    rng = np.random.default_rng(seed)
    paths = []
    for number in range(size):
        kind = number % len(KINDS)
        paths.append(folder / "train" / KINDS[kind].replace(" ", "_") / f"{number:05d}.wav")
        _write_wav(paths[-1], _draw(kind, rng))
    for number in range(NEW_SOUNDS):
        paths.append(folder / "new" / f"{number:02d}.wav")
        _write_wav(paths[-1], _draw(int(rng.integers(len(KINDS))), rng))
    return paths


def _draw(kind: int, rng: np.random.Generator) -> Samples:
    """Draw a sound of a kind, from -1 to 1."""
    time = np.arange(RATE) / RATE
    start, length = rng.uniform(0, 0.35), rng.uniform(0.45, 0.65)
    inside = (time >= start) & (time < start + length)
    position = ((time - start) / length).clip(0, 1)
    low = rng.uniform(150, 900)
    # A chirp passes two octaves; the other sounds stay at a pitch among these.
    octaves = {0: 2 - 2 * position, 1: 2 * position}.get(kind, np.full(RATE, rng.uniform(0, 2)))
    phase = 2 * np.pi * np.cumsum(low * 2**octaves) / RATE
    harmonics = rng.uniform(0.2, 1, 4) / np.arange(1, 5)
    tone = sum(weight * np.sin(order * phase) for order, weight in enumerate(harmonics, 1))
    if kind == 2:
        tone = tone * ((position * rng.integers(6, 14)) % 1 < 0.15)
    elif kind == 4:
        tone = tone * np.exp(-5 * position)
    elif kind == 5:
        tone = tone * (0.5 + 0.5 * np.sin(2 * np.pi * rng.uniform(5, 9) * time))
    # The noise of a room: more at low frequencies, and never the same loudness.
    noise = np.fft.irfft(np.fft.rfft(rng.normal(size=RATE)) / np.sqrt(1 + np.arange(RATE // 2 + 1) / 200), RATE)
    sound = tone * inside / np.abs(tone).max() + rng.uniform(0.1, 0.5) * noise / noise.std()
    return np.asarray(sound * rng.uniform(0.05, 0.9) / np.abs(sound).max())


def _write_wav(path: Path, samples: Samples) -> None:
    """Write samples as a WAV file of 16 bits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = np.rint(samples * 32767).astype("<i2").tobytes()
    header = struct.pack(
        "<4sI8sIHHIIHH4sI", b"RIFF", 36 + len(data), b"WAVEfmt ", 16, 1, 1, RATE, 2 * RATE, 2, 16, b"data", len(data)
    )
    path.write_bytes(header + data)
