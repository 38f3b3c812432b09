"""Bad specs: every mistake is told with file, line, column and key, with what is possible and what to do."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain.cli.main import main
from tests.job_spec.bad_documents import DOCUMENTS
from tests.job_spec.bad_keys import KEYS
from tests.job_spec.bad_values import VALUES
from tests.job_spec.broken_specs import break_spec
from tests.job_spec.rows import SPEC, Row, fill_lists
from tests.messages import begins_with, ends_with, get_message, says, says_each, says_only
from tests.paths import IMPORTS, ROOT

TABLE = [*DOCUMENTS, *KEYS, *VALUES]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the data that the specs name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "digits.npz").touch()
    return tmp_path


def read_validation_error(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    """What `validate job.yaml` says on stderr, after checks of the exit code and of stdout."""
    assert main(["validate", "job.yaml", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_the_table_is_long_and_without_duplicates() -> None:
    assert len(TABLE) >= 180
    assert len({row.spec() for row in TABLE}) == len(TABLE)


@pytest.mark.parametrize("row", TABLE, ids=Row.name)
def test_a_mistake_and_its_message(row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.yaml").write_bytes(row.spec())
    assert read_validation_error(capsys, 2) == row.message("job.yaml")


@pytest.mark.parametrize(
    ("command", "row"),
    [("validate", DOCUMENTS[0]), ("validate", KEYS[0]), ("plan", DOCUMENTS[-1]), ("train", VALUES[-1])],
)
def test_a_spec_error_on_the_command_line(command: str, row: Row) -> None:
    Path("job.yaml").write_bytes(row.spec())
    run = subprocess.run(
        [sys.executable, "-m", "drivetrain", command, "job.yaml"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": IMPORTS},
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (2, "", row.message("job.yaml"))
    assert not Path("runs").exists()


def test_all_problems_at_once_in_the_order_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.yaml").write_text(
        "nam: a\n"
        "task: image-classification\n"
        "train:\n"
        "  epochs: three\n"
        "  epochs: 4\n"
        "  optimizer: {name: sgd, lr: 0, momentum: !foo 1}\n"
        "  early_stopping: {metric: accuracy}\n"
        "  loss: mse\n"
        "optimize: {precision: bf17}\n"
        "checkpoint: {every: 0s}\n"
        "data: {train: data}\n"
    )
    heads = [line for line in read_validation_error(capsys, 2).splitlines() if not line.startswith("  ")]
    assert says_each(
        heads,
        [
            "job.yaml:1:1: name: is missing",
            "job.yaml:1:1: nam: unknown key",
            "job.yaml:4:3: train.epochs: is 'three'",
            get_message("key-appears-twice", "job.yaml", 5, 3, "train.epochs"),
            "job.yaml:6:26: train.optimizer.lr: is 0",
            get_message("tag-foo-allowed", "job.yaml", 6, 43, "train.optimizer.momentum"),
            "job.yaml:7:20: train.early_stopping.metric: is 'accuracy'",
            "job.yaml:8:3: train.loss: is 'mse'",
            "job.yaml:9:12: optimize.precision: is 'bf17'",
            "job.yaml:10:14: checkpoint.every: is '0s'",
        ],
    )


def test_an_unknown_task_hides_no_other_problem(capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.yaml").write_text("task: images\nname: a b\ndata: {train: 3, text: body}\ntrain: {epochs: 0}\nmodel: x\n")
    heads = [line for line in read_validation_error(capsys, 2).splitlines() if not line.startswith("  ")]
    assert heads == [
        "job.yaml:1:1: task: is 'images'",
        "job.yaml:2:1: name: is 'a b'",
        "job.yaml:3:8: data.train: is 3",
        "job.yaml:4:9: train.epochs: is 0",
    ]


@pytest.mark.parametrize(
    ("assignments", "location", "description", "possible", "action"),
    [
        (
            ["train.epochs"],
            "train.epochs:1:1",
            "not an assignment",
            "key.path=value",
            "write for example --set train.epochs=3",
        ),
        (["=3"], "=3:1:1", "not an assignment", "key.path=value", "write for example --set train.epochs=3"),
        (
            ["train..epochs=3"],
            "train..epochs=3:1:1",
            "not an assignment",
            "key.path=value",
            "write for example --set train.epochs=3",
        ),
        (["trian.epochs=3"], "trian.epochs=3:1:1", "trian: unknown key", "known keys: {top}", 'did you mean "train"?'),
        (
            ["train.epoch=3"],
            "train.epoch=3:1:13",
            "train.epoch: unknown key",
            "known keys: {train}",
            'did you mean "epochs"?',
        ),
        (
            ["train.epochs=three"],
            "train.epochs=three:1:14",
            "train.epochs: is 'three'",
            "a whole number",
            "change the value",
        ),
        (
            ["train.epochs="],
            "train.epochs=:1:14",
            "train.epochs: is null",
            "a whole number",
            "give a value, or remove the key",
        ),
        (
            ["train.optimizer.lr=x"],
            "train.optimizer.lr=x:1:20",
            "train.optimizer.lr: is 'x'",
            "a number",
            "change the value",
        ),
        (
            ["train.optimizer.betas=[0.9, 2]"],
            "train.optimizer.betas=[0.9, 2]:1:29",
            "train.optimizer.betas[1]: is 2",
            "a number < 1",
            "change the value",
        ),
        (
            ["train.epochs=["],
            "train.epochs=[:1:15",
            "expected the node content, but found '<stream end>'",
            "{yaml}",
            "{fix}",
        ),
        (
            ["train={epochs: 3"],
            "train={epochs: 3:1:17",
            "expected ',' or '}', but got '<stream end>'",
            "{yaml}",
            "{fix}",
        ),
        (
            ["train.epochs=3\nseed: 4"],
            "train.epochs=3\\nseed: 4:2:5",
            "mapping values are not allowed here",
            "{yaml}",
            "{fix}",
        ),
        (
            ["train.epochs=!!python/name:os.system x"],
            "train.epochs=!!python/name:os.system x:1:14",
            "train.epochs: the tag !!python/name:os.system is not allowed",
            "plain text, numbers, lists and mappings",
            "remove the tag",
        ),
        (
            ["train.epochs=&a [*a]"],
            "train.epochs=&a [*a]:1:14",
            "train.epochs[0]: an alias that contains itself",
            "values without cycles",
            "write the value out",
        ),
        (["name.x=3"], "name.x=3:1:1", "name: is a mapping", "{name}", "change the value"),
        (
            ["train.epochs.x=3"],
            "train.epochs.x=3:1:1",
            "train.epochs: is 1, not a mapping",
            "a key of a mapping",
            "set all of train.epochs instead",
        ),
        (
            ["train=[1]", "train.seed=3"],
            "train.seed=3:1:1",
            "train: is [1], not a mapping",
            "a key of a mapping",
            "set all of train instead",
        ),
        (
            ["train.\udcff=3"],
            "train.\\udcff=3:1:1",
            "not an assignment",
            "key.path=value",
            "write for example --set train.epochs=3",
        ),
        (
            ["name=\udcff"],
            "name=\\udcff:1:6",
            "the character U+DCFF is not allowed in YAML",
            "printable text",
            "remove it",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else value[-1].encode("unicode_escape").decode(),
)
def test_a_bad_assignment(
    assignments: list[str],
    location: str,
    description: str,
    possible: str,
    action: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("job.yaml").write_text(SPEC + "train: {optimizer: adamw, epochs: 1}\n")
    errors = read_validation_error(capsys, 2, *(word for text in assignments for word in ("--set", text)))
    message = fill_lists(f"--set {location}: {description}\n  possible: {possible}\n  do:       {action}\n")
    assert message in errors


def test_assignments_and_the_file_are_checked_together(capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.yaml").write_text(SPEC + "train: {epochs: 0, seed: -1}\n")
    text = read_validation_error(capsys, 2, "--set", "train.epochs=3", "--set", "x", "--set", "train.ema=2")
    assert [line for line in text.splitlines() if not line.startswith("  ")] == [
        "--set x:1:1: not an assignment",
        "--set train.ema=2:1:11: train.ema: is 2",
        "job.yaml:4:20: train.seed: is -1",
    ]


@pytest.mark.parametrize(
    ("text", "location", "description"),
    [
        ("data: {train: no/such}", "3:8", "data.train: 'no/such' does not exist"),
        ("data: {train: data/digits.npz/none-such}", "3:8", "data.train: 'data/digits.npz/none-such' does not exist"),
        ("data: {train: data, validation: there}", "3:21", "data.validation: 'there' does not exist"),
        (
            "data: {train: ~nobody-of-this-name/none-such}",
            "3:8",
            "data.train: '~nobody-of-this-name/none-such' does not exist",
        ),
        (f"data: {{train: {'x' * 5000}}}", "3:8", f"data.train: '{'x' * 59}…' cannot be read: File name too long"),
        ('data: {train: "a\\0b"}', "3:8", "data.train: 'a\\x00b' is not a path: embedded null byte"),
    ],
    ids=lambda value: value[:30].replace("\0", ""),
)
def test_data_that_is_not_there_is_exit_3(
    text: str, location: str, description: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = Row(
        text,
        location,
        description,
        f"a path relative to {folder}",
        "check the spelling; paths start from the folder of the job file; a container can access only the project and mounted folders",
    )
    Path("job.yaml").write_bytes(row.spec())
    assert read_validation_error(capsys, 3) == row.message("job.yaml")


def test_every_lost_path_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.yaml").write_text("task: image-classification\nname: a\ndata:\n  train: b\n  validation: c\n")
    assert says_each(
        read_validation_error(capsys, 3).splitlines()[:2],
        [
            get_message("does-not-exist", "job.yaml", 4, 3, "data.train", "b"),
            get_message("does-not-exist-2", "job.yaml", 5, 3, "data.validation", "c"),
        ],
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_that_this_user_may_not_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "data").chmod(0)
    Path("job.yaml").write_text(SPEC)
    assert says(read_validation_error(capsys, 3), "read-permission-denied", "data.train", "data")
    Path("job.yaml").chmod(0)
    assert begins_with(read_validation_error(capsys, 2), "permission-denied-possible-job", "job.yaml")


def test_no_file_and_no_file_but_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    advice = "\n  possible: a job file in YAML\n  do:       see the examples in jobs/, or draft one: `drivetrain init DATA`\n"
    assert says_only(read_validation_error(capsys, 2), "no-such-file-or-directory", "job.yaml", advice)
    Path("job.yaml").mkdir()
    assert says(read_validation_error(capsys, 2), "folder-not-job-file", "job.yaml")


@pytest.mark.parametrize("name", ["table.csv", "arrays.npz"])
def test_data_in_place_of_a_job_file(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The advice led to the example jobs; the name of the data is what `init` takes."""
    (tmp_path / name).write_text("a,b\n1,2\n")
    assert main(["validate", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert says(error, "data-not-job-file", tmp_path / name)
    assert f"`drivetrain init {tmp_path / name}`" in error


@pytest.mark.parametrize(
    ("typed_path", "nearest_path"),
    [
        ("jobs/digit.yaml", "jobs/digits.yaml"),
        ("jobs/digits", "jobs/digits.yaml"),
        ("digits.yaml", "jobs/digits.yaml"),
        ("digts", "jobs/digits.yaml"),
        ("mien.yml", "mine.yml"),
    ],
)
def test_a_mistyped_job_file(
    folder: Path, capsys: pytest.CaptureFixture[str], typed_path: str, nearest_path: str
) -> None:
    (folder / "jobs").mkdir()
    for name in ("jobs/digits.yaml", "jobs/reports.yaml", "mine.yml", "jobs/digits.csv"):
        (folder / name).touch()
    assert main(["validate", typed_path]) == 2
    assert says_only(capsys.readouterr().err, "file-directory-possible-job", typed_path, nearest_path)


def test_a_run_that_is_set_beside_a_network(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The advice was to remove it."""
    Path("job.yaml").write_text(SPEC + "model: resnet18\n")
    assert main(["validate", "job.yaml", "--set", "model.from=runs/a-001"]) == 2
    error_lines = capsys.readouterr().err.splitlines()
    assert ends_with(error_lines[0], "names-run-names-network", "model.from", "model.name")
    assert says_only(error_lines[2], "write-set-model-replaces", "runs/a-001")
    assert main(["validate", "job.yaml", "--set", "model={from: runs/a-001}"]) == 2
    assert "model.from: runs/a-001 does not exist" in capsys.readouterr().err


LINE = re.compile(r"  possible: |  do:       |job\.yaml:\d+:\d+: ")


@pytest.mark.parametrize("block", range(10))
def test_every_damage_gives_an_error_message(block: int, capsys: pytest.CaptureFixture[str]) -> None:
    good_spec = (ROOT / "jobs" / "digits.yaml").read_bytes()
    codes = set()
    for seed in range(block * 30, block * 30 + 30):
        Path("job.yaml").write_bytes(break_spec(good_spec, random.Random(seed)))
        codes.add(main(["validate", "job.yaml"]))
        for line in capsys.readouterr().err.splitlines():
            assert LINE.match(line), (seed, line)
    assert 2 in codes
    assert codes <= {0, 2, 3}
