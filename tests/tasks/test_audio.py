"""Sounds: odd files, windows, spectrograms, augmentation, and that nothing is lost on the way from file to network."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from drivetrain.data.dataset import Dataset, InputRecord
from drivetrain.data.load_data import load, load_new
from drivetrain.data.survey.look import look
from drivetrain.data.survey.settings import SurveyRequest
from drivetrain.errors import DataError
from drivetrain.job import Job
from drivetrain.job_spec import load_job
from drivetrain.tasks.audio import sound_file, spectrogram
from drivetrain.tasks.audio.job import AudioAugment, Masks
from drivetrain.tasks.audio.sound_file import UnreadableSound

RATE = 16_000
Samples = np.ndarray


def tone(seconds: float = 1.0, hertz: float = 1000, rate: int = RATE) -> Samples:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)


def write_sounds(folder: Path, count: int = 12, seconds: float = 0.3) -> None:
    """Two classes by pitch; each file differs by its noise."""
    rng = np.random.default_rng(0)
    for number in range(count):
        path = folder / ["low", "high"][number % 2] / f"{number}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        sound = tone(seconds, 400 + 900 * (number % 2))
        soundfile.write(path, sound + 0.01 * rng.normal(size=len(sound)), RATE)


def make_job(folder: Path, data: str) -> Job:
    (folder / "job.yaml").write_text(
        f"name: t\ntask: audio-classification\ndata: {{{data}}}\nmodel: {{name: small-cnn, width: 4}}\n"
    )
    return load_job.load(folder / "job.yaml")


def cut(path: Path) -> None:
    """Keep the first half of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def write_cut(path: Path) -> None:
    soundfile.write(path, np.random.default_rng(0).normal(size=RATE) * 0.1, RATE)
    cut(path)


def write_not_finite(path: Path) -> None:
    samples = tone()
    samples[100] = np.nan
    soundfile.write(path, samples, RATE, subtype="FLOAT")


BAD: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "empty": ("x.wav", lambda path: path.write_bytes(b""), "is empty"),
    "a text": ("x.wav", lambda path: path.write_text("no sound at all\n" * 40), "no sound file"),
    "cut wav": ("x.wav", write_cut, "cut off"),
    "cut flac": ("x.flac", write_cut, "no sound file"),
    "no samples": ("x.wav", lambda path: soundfile.write(path, tone()[:0], RATE), "0 samples"),
    "not finite": ("x.wav", write_not_finite, "no finite numbers"),
    "another kind": ("x.mp3", lambda path: path.write_bytes(b"ID3" + bytes(500)), "not read"),
}
GOOD: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "8 bit": ("x.wav", lambda path: soundfile.write(path, tone(0.3), RATE, subtype="PCM_U8"), ""),
    "24 bit": ("x.wav", lambda path: soundfile.write(path, tone(0.3), RATE, subtype="PCM_24"), ""),
    "float": ("x.wav", lambda path: soundfile.write(path, tone(0.3), RATE, subtype="FLOAT"), ""),
    "ogg": ("x.ogg", lambda path: soundfile.write(path, tone(0.3), RATE), ""),
    "stereo": ("x.wav", lambda path: soundfile.write(path, np.stack([tone(0.3)] * 2, 1), RATE), "several channels"),
    "8 kHz": ("x.wav", lambda path: soundfile.write(path, tone(0.3, rate=8000), 8000), "8,000 Hz: 1; 1 have a lower"),
    "44.1 kHz": ("x.flac", lambda path: soundfile.write(path, tone(0.3, rate=44100), 44100), "44,100 Hz: 1"),
    "short": ("x.wav", lambda path: soundfile.write(path, tone(0.1), RATE), "1 of 13 sounds are shorter"),
    "long": ("x.wav", lambda path: soundfile.write(path, tone(2), RATE), "1 of 13 sounds are longer"),
    "silent": ("x.wav", lambda path: soundfile.write(path, 0 * tone(0.3), RATE), "are silent"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_listed_and_skipped(kind: str, tmp_path: Path) -> None:
    name, write, reason = BAD[kind]
    write_sounds(tmp_path / "sounds", 24)
    write(tmp_path / "sounds" / "low" / name)
    dataset = load(make_job(tmp_path, "train: sounds, validation: 0.25, bands: 16"))
    assert len(dataset.train) + len(dataset.validation) == 24
    assert [note for note in dataset.notes if name in note and reason in note]
    job = make_job(tmp_path, "train: sounds, validation: 0.25, bad_samples: 0")
    with pytest.raises(DataError, match=reason):
        load(job)


@pytest.mark.parametrize("kind", GOOD)
def test_an_odd_file_is_read_with_a_note(kind: str, tmp_path: Path) -> None:
    name, write, part = GOOD[kind]
    write_sounds(tmp_path / "sounds")
    write(tmp_path / "sounds" / "high" / name)
    dataset = load(make_job(tmp_path, "train: sounds, validation: 0.25, seconds: 0.3, bands: 16"))
    assert len(dataset.train) + len(dataset.validation) == 13
    assert not [note for note in dataset.notes if "cannot be used" in note]
    assert not part or [note for note in dataset.notes if part in note]


@pytest.mark.parametrize(("suffix", "most"), [("wav", 1e-4), ("flac", 1e-4), ("ogg", 0.1)])
def test_a_window_is_the_same_part_of_the_sound(suffix: str, most: float, tmp_path: Path) -> None:
    path = str(tmp_path / f"x.{suffix}")
    soundfile.write(path, tone(), RATE)
    window = sound_file.read_window(path, 0.25, RATE, RATE)
    np.testing.assert_allclose(window[:12000], tone()[4000:], atol=most)
    assert not window[12000:].any()


@pytest.mark.parametrize("rate", [8000, 11025, 44100, 48000])
def test_another_rate_gives_the_same_sound(rate: int, tmp_path: Path) -> None:
    path = str(tmp_path / "x.wav")
    soundfile.write(path, tone(rate=rate), rate)
    window = sound_file.read_window(path, 0, RATE, RATE)
    np.testing.assert_allclose(window[500:-500], tone()[500:-500], atol=2e-3)


def test_frequencies_that_the_new_rate_cannot_hold_are_left_out() -> None:
    sound = tone(hertz=3000, rate=48000).astype(np.float32)
    assert np.abs(sound_file.resample(sound, 48000, 4000)).max() < 1e-3


def test_a_lossless_copy_has_the_same_content(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).integers(-(2**15), 2**15, 5000).astype(np.int16)
    for name in ("a.wav", "a.flac"):
        soundfile.write(tmp_path / name, samples, RATE)
    one, other = (sound_file.check(str(tmp_path / name)) for name in ("a.wav", "a.flac"))
    assert one.content == other.content


def test_a_long_file_is_read_by_window(tmp_path: Path) -> None:
    """Of twenty minutes: neither the check nor a window holds all of them."""
    path = str(tmp_path / "x.wav")
    soundfile.write(path, np.tile(tone(rate=8000), 1200), 8000, subtype="PCM_U8")
    tracemalloc.start()
    assert sound_file.check(path).seconds == 1200
    sound_file.read_window(path, 600, RATE, RATE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6


def test_a_changed_file_stops_with_its_name(tmp_path: Path) -> None:
    write_sounds(tmp_path / "sounds")
    dataset = load(make_job(tmp_path, "train: sounds, validation: 0.25"))
    Path(dataset.train.title(0)).write_text("gone")
    with pytest.raises(DataError, match="could be decoded when the run began"):
        dataset.train.gather(np.arange(1))
    with pytest.raises(UnreadableSound):
        sound_file.read_window(str(tmp_path / "missing.wav"), 0, 10, RATE)


@pytest.mark.parametrize("hertz", [200, 1000, 5000])
def test_a_tone_is_loudest_in_its_band(hertz: float) -> None:
    sound = spectrogram.SoundPreprocessing(RATE, RATE, 64)
    bands = sound.compute(torch.from_numpy(tone(hertz=hertz)[None]))[0]
    mel = 2595 * np.log10(1 + np.array([hertz, RATE / 2]) / 700)
    assert bands.shape == (64, sound.frames)
    assert abs(int(bands[:, 50].argmax()) - (mel[0] / mel[1] * 65 - 1)) <= 1


def test_a_spectrogram_depends_on_no_other_sound() -> None:
    sound = spectrogram.SoundPreprocessing(RATE, 4000, 32)
    windows = torch.from_numpy(np.random.default_rng(0).normal(size=(9, 4000)))
    together = sound.compute(windows)
    assert all(torch.equal(sound.compute(windows[i : i + 1])[0], together[i]) for i in range(9))


@pytest.mark.parametrize(("bands", "points", "rate"), [(64, 512, 16000), (128, 256, 8000), (512, 64, 2000)])
def test_no_band_is_empty(bands: int, points: int, rate: int) -> None:
    filters = spectrogram.make_filters(bands, points, rate)
    assert filters.shape == (bands, points // 2 + 1)
    assert (filters.sum(axis=1) > 0).all()


def test_masks_hide_bands_and_frames() -> None:
    spec = AudioAugment(band_masks=Masks(count=1, share=0.25), time_masks=Masks(count=2, share=0.1))
    ones, ids = torch.ones(50, 40, 100), np.arange(50)
    masked = spectrogram.hide_bands_and_frames(ones, spec, 1, 0, ids)
    bands, frames = (masked == 0).all(dim=2).sum(dim=1), (masked == 0).all(dim=1).sum(dim=1)
    assert bands.max() == 10
    assert 10 < frames.max() <= 20
    assert bands.min() == 0
    alone = spectrogram.hide_bands_and_frames(ones[:1], spec, 1, 0, ids[7:8])
    assert torch.equal(alone[0], masked[7])
    assert not torch.equal(spectrogram.hide_bands_and_frames(ones, spec, 1, 1, ids), masked)


def load_long(folder: Path, data_keys: str = "") -> Dataset:
    write_sounds(folder / "sounds", seconds=1.0)
    return load(make_job(folder, f"train: sounds, validation: 0.25, seconds: 0.4, bands: 16{data_keys}"))


def test_training_hears_another_window_in_every_epoch(tmp_path: Path) -> None:
    dataset = load_long(tmp_path)
    ids = np.arange(len(dataset.train))
    first, second, repeated = (dataset.train.at_epoch(epoch).gather(ids)[0] for epoch in (0, 1, 0))  # type: ignore[attr-defined]
    assert torch.equal(first, repeated)
    assert not torch.equal(first, second)
    assert "random window" in str(dataset.notes)
    assert torch.equal(first[3:4], dataset.train.at_epoch(0).gather(ids[3:4])[0])  # type: ignore[attr-defined]


def test_validation_hears_the_middle(tmp_path: Path) -> None:
    dataset = load_long(tmp_path, ", augment: {random_window: false}")
    for split in (dataset.train, dataset.validation):
        samples, _ = soundfile.read(split.title(0), dtype="float32")
        np.testing.assert_array_equal(split.gather(np.arange(1))[0][0].numpy(), samples[4800:11200])
    assert not hasattr(dataset.train, "at_epoch")
    assert "random window" not in str(dataset.notes)
    assert "their middle" in str(dataset.notes)


def test_a_resumed_run_reads_the_same(tmp_path: Path) -> None:
    dataset = load_long(tmp_path)
    restored = load(load_job.load(tmp_path / "job.yaml"), InputRecord(dataset.preprocessing, dataset.heads))
    assert restored.preprocessing == dataset.preprocessing
    ids = np.arange(4)
    for one, other in ((dataset, restored), (restored, dataset)):
        inputs = [loaded.prepare(loaded.train.at_epoch(2).gather(ids), ids, 2)[0] for loaded in (one, other)]  # type: ignore[attr-defined]
        assert torch.equal(*inputs)


def test_a_manifest_divides_speakers(tmp_path: Path) -> None:
    write_sounds(tmp_path / "sounds", 24)
    paths = sorted((tmp_path / "sounds").rglob("*.wav"))
    rows = [f"{p.relative_to(tmp_path)},{p.parent.name},s{int(p.stem) // 4}" for p in paths]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,speaker", *rows]))
    dataset = load(make_job(tmp_path, "train: list.csv, validation: 0.3, groups: speaker, bands: 16"))
    speakers = [
        {int(Path(split.title(index)).stem) // 4 for index in range(len(split))}
        for split in (dataset.train, dataset.validation)
    ]
    assert all(speakers)
    assert not speakers[0] & speakers[1]


def test_a_sound_has_several_labels(tmp_path: Path) -> None:
    write_sounds(tmp_path / "sounds")
    paths = sorted((tmp_path / "sounds").rglob("*.wav"))
    rows = [f"{p.relative_to(tmp_path)},{p.parent.name}|{'odd' if int(p.stem) % 3 else 'even'}" for p in paths]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]))
    dataset = load(make_job(tmp_path, "train: list.csv, validation: 0.25, multi_label: true, bands: 16"))
    assert dataset.heads[""].classes == ("even", "high", "low", "odd")
    assert dataset.train.targets[""].shape == (9, 4)


@pytest.mark.parametrize("name", ["sounds", "list.csv"])
def test_init_drafts_a_job_that_loads(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_sounds(tmp_path / "sounds", 24)
    rows = [f"{p.relative_to(tmp_path)},{p.parent.name}" for p in sorted((tmp_path / "sounds").rglob("*.wav"))]
    (tmp_path / "list.csv").write_text("\n".join(["file,kind", *rows]))
    draft = look(SurveyRequest(tmp_path / name, tmp_path))
    assert draft.task == "audio-classification"
    (tmp_path / "job.yaml").write_text(draft.text("t", []))
    dataset = load(load_job.load(tmp_path / "job.yaml"))
    assert len(dataset.train) + len(dataset.validation) == 24


def test_new_sounds_of_any_rate_and_length_are_read(tmp_path: Path) -> None:
    write_sounds(tmp_path / "sounds")
    dataset = load(make_job(tmp_path, "train: sounds, validation: 0.25, bands: 16"))
    (tmp_path / "new").mkdir()
    soundfile.write(tmp_path / "new" / "a.flac", tone(3, rate=44100), 44100)
    soundfile.write(tmp_path / "new" / "b.wav", tone(0.1), RATE)
    (tmp_path / "new" / "c.wav").write_text("no sound")
    new = load_new([tmp_path / "new"], dataset.preprocessing, dataset.heads, labelled=False)
    inputs = new.prepare(new.split.gather(np.arange(2)), np.arange(2), None)[0]
    assert inputs.shape == (2, 1, 16, 31)
    assert all([part for part in new.notes if word in part] for word in ("44,100 Hz", "shorter", "longer", "c.wav"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "c.wav").write_text("no sound")
    with pytest.raises(DataError):
        load_new([tmp_path / "broken"], dataset.preprocessing, dataset.heads, labelled=False)
