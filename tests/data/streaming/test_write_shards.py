"""A folder of images as shards: resumable, the same bytes, listed with hashes, and read back as the folder is."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import torch
from PIL import Image

from drivetrain.cli.main import main
from drivetrain.data.load_data import load
from drivetrain.data.streaming import write_shards
from drivetrain.data.streaming.write_shards import FORMS
from drivetrain.errors import DataError, DrivetrainError
from drivetrain.system.files import hash_file
from tests.data.streaming import shards
from tests.data.streaming.written_shards import SIZE, write_image_shards, write_images
from tests.messages import saying, says


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))


def digests(folder: Path) -> dict[str, str]:
    return {file.name: hash_file(file) for file in sorted(folder.iterdir())}


@pytest.mark.parametrize("form", FORMS)
def test_all_images_in_random_order_listed_with_hashes(tmp_path: Path, form: str) -> None:
    write_image_shards(write_images(tmp_path / "i"), tmp_path / "s", form=form)
    assert {path.suffix for path in (tmp_path / "s").iterdir()} == {f".{form}", ".json"}
    listing = json.loads((tmp_path / "s/index.json").read_text())
    assert listing["complete"] is True
    assert listing["samples"] == 150
    assert {shard["name"]: shard["sha256"] for shard in listing["shards"]}.items() <= digests(tmp_path / "s").items()
    assert len(listing["shards"]) > 4
    assert all(shard["bytes"] < SIZE + 20_000 for shard in listing["shards"])
    dataset = load(shards.job(tmp_path, "s"))
    assert len(dataset.train) + len(dataset.validation) == 150
    assert dataset.heads[""].classes == ("bright", "dark")
    assert Counter(dataset.train.targets[""].tolist())[0] > 40
    assert not any("single class" in note for note in dataset.notes)


def test_both_formats_hold_the_same_samples(tmp_path: Path) -> None:
    source, samples = write_images(tmp_path / "i"), []
    for form in FORMS:
        write_image_shards(source, tmp_path / form, form=form)
        split = load(shards.job(tmp_path, form)).train
        samples.append((split.targets[""], split.gather(np.arange(len(split)))))
    torch.testing.assert_close(samples[0], samples[1], rtol=0, atol=0)


@pytest.mark.parametrize("form", FORMS)
def test_resumed_after_any_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    source = write_images(tmp_path / "i")
    write_image_shards(source, tmp_path / "whole", form=form)
    for after in range(4):
        put, puts_left = write_shards.LocalFolder.put_file, [2 * after + 2]

        def stop(self: write_shards.LocalFolder, name: str, file: BinaryIO, put=put, puts_left=puts_left) -> None:  # type: ignore[no-untyped-def]
            puts_left[0] -= 1
            if puts_left[0] < 0:
                raise KeyboardInterrupt
            put(self, name, file)

        monkeypatch.setattr(write_shards.LocalFolder, "put_file", stop)
        with pytest.raises(KeyboardInterrupt):
            write_image_shards(source, tmp_path / f"{after}", form=form)
        monkeypatch.setattr(write_shards.LocalFolder, "put_file", put)
        with pytest.raises(DataError, check=saying("are-not-all-written")):
            load(shards.job(tmp_path, f"{tmp_path}/{after}"))
        lines = write_image_shards(source, tmp_path / f"{after}", form=form)
        assert digests(tmp_path / f"{after}") == digests(tmp_path / "whole")
        assert len(lines) == len(digests(tmp_path / "whole")) - 1 - after  # those that are there are not written again
    assert write_image_shards(source, tmp_path / "whole", form=form) == []


def test_what_cannot_be_decoded_is_left_out(tmp_path: Path) -> None:
    source = write_images(tmp_path / "i")
    (source / "dark/bad.png").write_bytes(b"no image")
    lines = write_image_shards(source, tmp_path / "s")
    assert says(lines, "samples-used-skipped-4", 1, 151)
    assert json.loads((tmp_path / "s/index.json").read_text())["samples"] == 150
    for number in range(20):
        (source / f"dark/bad{number}.png").write_bytes(b"no image")
    with pytest.raises(DataError, check=saying("samples-cannot-be-used")):
        write_image_shards(source, tmp_path / "t")


def test_other_data_does_not_mix(tmp_path: Path) -> None:
    source = write_images(tmp_path / "i")
    write_image_shards(source, tmp_path / "s")
    with pytest.raises(DataError, check=saying("images-another-size-seed")):
        write_image_shards(source, tmp_path / "s", seed=1)
    with pytest.raises(DataError, match="seed or format"):
        write_image_shards(source, tmp_path / "s", form="parquet")
    Image.new("RGB", (8, 8)).save(source / "dark/new.png")
    with pytest.raises(DataError, match="of other images"):
        write_image_shards(source, tmp_path / "s")
    shards.write_shards(tmp_path / "foreign")
    with pytest.raises(DataError, match="has not written"):
        write_image_shards(source, tmp_path / "foreign")


@pytest.mark.parametrize(("spoil", "expected_text"), [("missing", "is missing"), ("cut", "has 600 bytes")])
def test_a_listed_shard_that_is_not_there(tmp_path: Path, spoil: str, expected_text: str) -> None:
    write_image_shards(write_images(tmp_path / "i"), tmp_path / "s")
    file = tmp_path / "s/000001.tar"
    if spoil == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:600])
    with pytest.raises(DataError, match=f"shard 000001.tar of .* {expected_text}"):
        load(shards.job(tmp_path, "s"))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_images(tmp_path / "i", 20)
    assert main(["shard", str(source), "--to", str(tmp_path / "s"), "--size", "1m"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{tmp_path}/s: 1 shards, 20 images")
    assert main(["shard", str(source), "--to", "https://host/x"]) == 2
    assert main(["shard", str(source), "--to", str(tmp_path / "t"), "--size", "much"]) == 2
    assert main(["shard", str(tmp_path / "nothing"), "--to", str(tmp_path / "t")]) == 3


def test_errors_have_three_parts(tmp_path: Path) -> None:
    with pytest.raises(DrivetrainError) as error:
        write_shards.open_destination("https://host/x")
    assert all((error.value.given, error.value.possible, error.value.action))
