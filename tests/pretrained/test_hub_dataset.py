"""Data by its name on the hub: its splits, fetched once, pinned to a commit, and what a hub can do wrong."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from drivetrain.cli.main import main
from drivetrain.data.load_data import load
from drivetrain.errors import SpecError
from drivetrain.job.hub_address import HubAddress, parse
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.launch import network
from tests.hub_double import COMMIT
from tests.hub_server import Hub
from tests.messages import get_message, says, says_each
from tests.pretrained.hub_dataset import (
    FILES,
    NAME,
    NEEDED,
    OTHER,
    catch_spec_error,
    load_job,
    repository_cache,
    table,
    write_spec,
)


@pytest.fixture
def hub(dataset_hub: Hub) -> Hub:
    return dataset_hub


def test_addresses() -> None:
    assert parse("hf://datasets/casa/frases") == HubAddress("casa/frases")
    assert parse("hf://datasets/imdb") == HubAddress("imdb")
    assert parse("hf://datasets/a/b@refs/convert/parquet/c") == HubAddress("a/b", "refs/convert/parquet", "c")
    assert parse("hf://datasets/a/b@refs%2Fpr%2F1/c/d.csv") == HubAddress("a/b", "refs/pr/1", "c/d.csv")
    assert [parse(str(address)) for address in (HubAddress("a/b", "refs/pr/1", "c"),)] == [
        HubAddress("a/b", "refs/pr/1", "c")
    ]
    for bad_address in (
        "hf://a/b",
        "hf://datasets/",
        "hf://datasets/a/b/../c",
        "hf://datasets/a/b//c",
        "hf:datasets/a/b",
    ):
        assert parse(bad_address) is None, bad_address


def test_the_splits_of_the_readme_fetched_once(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.page = 2
    job = load_job(tmp_path)
    commit_address = f"hf://datasets/{NAME}@{COMMIT}"
    assert (job.data.train, job.data.test) == (
        f"{commit_address}/data/train-00000-of-00002.parquet",
        f"{commit_address}/data/test-00000-of-00001.parquet",
    )
    assert says_each(
        job.notes,
        (
            get_message(
                "main-commit-training-final",
                "data.train",
                "casa/frases",
                COMMIT[:12],
                "data/train-00000-of-00002.parquet",
                "data/test-00000-of-00001.parquet",
            ),
        ),
    )
    folder = repository_cache(tmp_path) / "snapshots" / COMMIT
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert contents == {name: FILES[name] for name in NEEDED}, "and nothing else"
    assert f"hub: fetching {NAME} at {COMMIT[:12]} from {hub.endpoint}: 3 files" in capsys.readouterr().out
    dataset = load(job)
    assert dataset.heads[""].classes == ("0", "1")
    assert len(dataset.train) + len(dataset.validation) == 40
    hub.requests.clear()
    assert load_job(tmp_path).data == job.data
    assert hub.requests == []


def test_other_libraries_find_it(hub: Hub, tmp_path: Path) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    load_job(tmp_path)
    path = huggingface_hub.hf_hub_download(
        NAME,
        "data/test-00000-of-00001.parquet",
        repo_type="dataset",
        cache_dir=tmp_path / "home" / "hub",
        local_files_only=True,
    )
    assert Path(path).read_bytes() == FILES["data/test-00000-of-00001.parquet"]


def test_class_names_of_the_table(hub: Hub, tmp_path: Path) -> None:
    label = {"_type": "ClassLabel", "names": ["mal", "bien"]}
    hub.files["data/train-00000-of-00002.parquet"] = table(24, label=label)
    hub.files["data/train-00001-of-00002.parquet"] = table(16, 24, label=label)
    hub.files["data/test-00000-of-00001.parquet"] = table(10, 100, label=label)
    assert load(load_job(tmp_path)).heads[""].classes == ("bien", "mal")


@pytest.mark.parametrize(
    ("names", "train", "validation", "test"),
    [
        (["train.csv", "valid.csv", "test.csv"], "train.csv", "valid.csv", "test.csv"),
        (["frases_training.csv", "frases-eval.csv"], "frases_training.csv", 0.1, "frases-eval.csv"),
        (["default/train/0000.parquet", "default/train/0001.parquet", "default/dev/0000.parquet"],
         "default/train/0000.parquet", "default/dev/0000.parquet", None),
        (["all.jsonl"], "all.jsonl", 0.1, None),
        (["train.csv", "train.parquet", "trainer_log.csv"], "train.parquet", 0.1, None),
    ],
)  # fmt: skip
def test_splits_by_names(
    hub: Hub, tmp_path: Path, names: list[str], train: str, validation: str | float, test: str | None
) -> None:
    def content(name: str, start: int) -> bytes:
        if name.endswith("parquet"):
            return table(20, start)
        rows = range(start, start + 30)
        if name.endswith("csv"):
            return ("text,label\n" + "".join(f"caso {i},{i % 2}\n" for i in rows)).encode()
        return "".join(f'{{"text": "caso {i}", "label": {i % 2}}}\n' for i in rows).encode()

    hub.files = {name: content(name, 100 * number) for number, name in enumerate(names)}
    job = load_job(tmp_path)

    def path(text: object) -> object:
        return text.partition(f"{COMMIT}/")[2] if isinstance(text, str) else text

    assert (path(job.data.train), path(job.data.validation), path(job.data.test)) == (train, validation, test)
    assert len(load(job).train) > 10


def test_a_file_a_folder_and_a_validation_of_ones_own(hub: Hub, tmp_path: Path) -> None:
    job = load_job(tmp_path, f"hf://datasets/{NAME}@{COMMIT}/data/test-00000-of-00001.parquet")
    assert (job.data.validation, job.data.test) == (0.1, None)
    assert not (repository_cache(tmp_path) / "snapshots" / COMMIT / "data" / "train-00000-of-00002.parquet").exists()
    both = load_job(
        tmp_path,
        f"hf://datasets/{NAME}/data",
        f", validation: 'hf://datasets/{NAME}/data/test-00000-of-00001.parquet', test: null",
    )
    assert both.data.test is None
    assert len(load(both).validation) == 10
    assert len(load(both).train) == 40


def test_groups_and_a_validation_split_of_the_hub(hub: Hub, tmp_path: Path) -> None:
    """The split may tear groups apart; that is said before anything is downloaded."""
    hub.files = {
        f"{name}.csv": b"x,kind,who\n" + b"1,a,p\n2,a,p\n1,b,q\n2,b,q\n" * 9 for name in ("train", "validation")
    }
    job = tmp_path / "job.yaml"
    text = f"name: t\ntask: tabular-classification\ndata: {{train: hf://datasets/{NAME}, target: kind, groups: who"
    job.write_text(text + "}\n")
    with pytest.raises(SpecError, match=r"data\.groups: is 'who', and hf://datasets/.* has a split for validation"):
        SpecSource(job).load()
    assert not hub.paths(".csv")
    job.write_text(text + ", validation: 0.5}\n")
    loaded_job = SpecSource(job).load()
    assert loaded_job.data.validation == 0.5
    assert any(note.startswith("groups of who: ") for note in load(loaded_job).notes)


def test_several_configurations_are_listed(hub: Hub, tmp_path: Path) -> None:
    hub.files = {
        "README.md": b"---\nconfigs:\n- config_name: es\n  data_files: es/*.csv\n- config_name: fr\n  data_files:\n"
        b"  - {split: train, path: fr/a.csv}\n  - {split: test, path: [fr/b.csv]}\n---\n",
        **dict.fromkeys(("es/x.csv", "fr/a.csv", "fr/b.csv"), b"text,label\na,0\n"),
    }
    error = str(catch_spec_error(tmp_path))
    assert f"job.yaml:4:8: data.train: hf://datasets/{NAME}: has 2 configurations: es, fr" in error
    assert f"es: train: hf://datasets/{NAME}/es/x.csv" in error
    assert f"fr: train: hf://datasets/{NAME}/fr/a.csv, test: hf://datasets/{NAME}/fr/b.csv" in error
    assert load_job(tmp_path, f"hf://datasets/{NAME}/fr/a.csv").data.train.endswith(f"@{COMMIT}/fr/a.csv")


@pytest.mark.parametrize(
    ("files", "problem", "action"),
    [
        ({"frases.py": b"print(1)", "raw/train.csv": b"a,b\n1,2\n"}, "is made by a script, frases.py, which is code that is not run",
         "@refs%2Fconvert%2Fparquet; or name a file: hf://datasets/casa/frases/raw/train.csv"),
        ({"frases.py": b"print(1)"}, "is made by a script, frases.py", "@refs%2Fconvert%2Fparquet"),
        ({"a.zip": b"x", "b.zip": b"x"}, "has no data that can be read; it has 2 .zip", "use another dataset"),
        ({"train/a.csv": b"a,b\n", "train/b.csv": b"a,b\n"}, "has 2 files for training: train/a.csv, train/b.csv",
         "name one: data.train: hf://datasets/casa/frases/train/a.csv"),
        ({"test.csv": b"a,b\n"}, "has the splits test, and none for training", "name a file"),
    ],
)  # fmt: skip
def test_what_cannot_be_used(hub: Hub, tmp_path: Path, files: dict[str, bytes], problem: str, action: str) -> None:
    hub.files = files
    error = catch_spec_error(tmp_path)
    assert problem in str(error)
    assert action in str(error)
    assert hub.paths("resolve") == [], "nothing is downloaded"


def test_the_branch_of_parquet_files(hub: Hub, tmp_path: Path) -> None:
    hub.revisions["refs/convert/parquet"] = COMMIT
    hub.files = {f"{config}/train/0000.parquet": table(20) for config in ("es", "fr")}
    address = f"hf://datasets/{NAME}@refs%2Fconvert%2Fparquet"
    assert says(str(catch_spec_error(tmp_path, address)), "configurations-es-fr-possible", 2, f"{address}/es")
    assert load_job(tmp_path, f"{address}/fr").data.train == f"hf://datasets/{NAME}@{COMMIT}/fr/train/0000.parquet"


@pytest.mark.parametrize("text", ["hf://datasets/casa/frases/../x", "hf://casa/frases", "hf://spaces/a/b"])
def test_an_address_that_is_none(hub: Hub, tmp_path: Path, text: str) -> None:
    assert "hf://datasets/OWNER/NAME, optionally with @REVISION" in str(catch_spec_error(tmp_path, text))
    assert hub.requests == []


def test_validate_asks_nothing(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(write_spec(tmp_path))]) == 0
    assert says(capsys.readouterr().out, "hf-datasets-cache-hugging", "data.train", NAME)
    assert hub.requests == []
    assert says_each(
        network.decide(job_spec.load(write_spec(tmp_path))),
        (True, get_message("network-hf-datasets-hugging", "data.train", NAME)),
    )


def test_fetch_and_update(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["fetch", str(write_spec(tmp_path))]) == 0
    output = capsys.readouterr().out
    assert f"{NAME}: fetched 4 files" in output
    assert "  data/train-00001-of-00002.parquet" in output
    assert f"commit {COMMIT}\nin {repository_cache(tmp_path)}/snapshots/{COMMIT}\n" in output
    hub.requests.clear()
    assert main(["fetch", str(write_spec(tmp_path))]) == 0
    assert f"{NAME}: everything is there, 4 files" in capsys.readouterr().out
    assert hub.requests == []
    hub.revisions["main"] = OTHER
    assert main(["fetch", str(write_spec(tmp_path)), "--update"]) == 0
    assert f"commit {OTHER}" in capsys.readouterr().out
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert OTHER in load_job(tmp_path).data.train


def run_training(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "drivetrain",
        "train",
        str(folder / "job.yaml"),
        "--runs",
        str(folder / "runs"),
        *options,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.nightly
def test_a_run_keeps_its_commit_when_the_branch_moves(hub: Hub, tmp_path: Path) -> None:
    write_spec(tmp_path)
    first = run_training(tmp_path, "--set", "train.max_time=0.01s")
    assert first.returncode == 75, first.stdout + first.stderr
    run = tmp_path / "runs" / "frases-001"
    assert f"train: hf://datasets/{NAME}@{COMMIT}/data/train-00000-of-00002.parquet" in (run / "job.yaml").read_text()
    # The branch has moved, other files have other names, and the cache has lost the old commit.
    hub.earlier = {COMMIT: dict(hub.files)}
    hub.revisions["main"] = OTHER
    hub.files = {"train.csv": b"text,label\n" + b"".join(b"x %d,%d\n" % (i, i % 2) for i in range(30))}
    shutil.rmtree(repository_cache(tmp_path))
    assert main(["fetch", str(tmp_path / "job.yaml")]) == 0
    done = run_training(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert says(done.stdout, "continues-commit-began-hf", "data.train", NAME, COMMIT)
    assert f"@{OTHER}/train.csv" in str(load_job(tmp_path).data), "a new run begins with what the branch has now"


def test_a_folder_of_images_by_split(hub: Hub, tmp_path: Path) -> None:
    path = tmp_path / "one.png"
    hub.files = {}
    for split, count in (("train", 6), ("test", 2)):
        for kind, color in (("day", (250, 250, 240)), ("night", (10, 10, 30))):
            for number in range(count):
                Image.new("RGB", (20, 20), (color[0], color[1], number)).save(path)
                hub.files[f"{split}/{kind}/{number}.png"] = path.read_bytes()
    (tmp_path / "job.yaml").write_text(
        f"name: sky\ntask: image-classification\ndata: {{train: 'hf://datasets/{NAME}', image_size: 16}}\n"
    )
    job = SpecSource(tmp_path / "job.yaml").load()
    at = f"hf://datasets/{NAME}@{COMMIT}"
    assert (job.data.train, job.data.test) == (f"{at}/train", f"{at}/test")
    dataset = load(job)
    assert dataset.heads[""].classes == ("day", "night")
    assert len(dataset.train) + len(dataset.validation) == 12
