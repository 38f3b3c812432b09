"""Commands that run in the image where this environment has no torch: when, how hardened, and what they may see."""

from __future__ import annotations

import contextlib
import csv
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from drivetrain.cli import main
from drivetrain.cli.arguments import list_commands, make_parser
from drivetrain.errors import DeviceError, SpecError, StorageError
from drivetrain.launch import compose_project, container, container_limits, docker_engine, run_in_image
from drivetrain.launch.project import PROJECT
from drivetrain.supervisor import named_run
from tests.messages import says
from tests.paths import ROOT

HERE = PROJECT


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_in_image, "find_spec", lambda name: None)
    monkeypatch.setattr(
        named_run, "check_exists", lambda path: path
    )  # runs are looked for in tests/supervisor/test_named_run.py
    monkeypatch.delenv("DRIVETRAIN_IMAGE", raising=False)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, no_torch: None) -> list[list[str]]:
    """What would be run, with an engine of two CPUs that has the image."""
    lines: list[list[str]] = []

    class Engine:
        def info(self) -> dict[str, int]:
            return {"NCPU": 2, "MemTotal": 8 << 30}

    def run(line: list[str], **others: Any) -> subprocess.CompletedProcess[str]:
        lines.append(line)
        return subprocess.CompletedProcess(line, 3)

    monkeypatch.setattr(docker_engine, "connect", Engine)
    monkeypatch.setattr(docker_engine, "provide_image", lambda client, word: None)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.chdir(HERE)
    return lines


def list_values(line: list[str], option: str) -> list[str]:
    return [line[i + 1] for i, word in enumerate(line) if word == option]


def test_only_where_torch_is_missing(monkeypatch: pytest.MonkeyPatch, no_torch: None) -> None:
    commands = list_commands(make_parser())
    assert {command for command in commands if run_in_image.is_needed(command)} == set(run_in_image.COMMANDS)
    monkeypatch.setenv("DRIVETRAIN_IMAGE", "cpu")
    assert not run_in_image.is_needed("predict")
    monkeypatch.delenv("DRIVETRAIN_IMAGE")
    monkeypatch.setattr(run_in_image, "find_spec", lambda name: object())
    assert not run_in_image.is_needed("predict")


@pytest.mark.parametrize(
    ("package", "has_image", "expected"), [("onnx", True, True), ("onnx", False, False), ("", True, False)]
)
def test_an_export_whose_packages_are_missing_runs_in_an_image_that_is_at_hand(
    monkeypatch: pytest.MonkeyPatch, no_torch: None, package: str, has_image: bool, expected: bool
) -> None:
    monkeypatch.setattr(run_in_image, "find_spec", lambda name: None if name == package else object())
    monkeypatch.setattr(docker_engine, "has_image", lambda word: has_image)
    assert run_in_image.is_needed("export") == expected


def test_an_unfinished_setup_is_no_environment(monkeypatch: pytest.MonkeyPatch, no_torch: None) -> None:
    """`predict` beside a running `make setup` ended with No module named 'numpy'."""
    monkeypatch.setattr(run_in_image, "find_spec", lambda name: None if name == "numpy" else object())
    assert run_in_image.is_needed("predict")


def test_predict_runs_in_the_image(
    commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its exit code is ours; the project is where it is, other paths that are named can be read, all else is closed."""
    monkeypatch.setattr(container_limits, "SECURE_UID", os.getuid())
    arguments = ["predict", "runs/parts-001", str(tmp_path), "--output", "answers.csv"]
    assert main.main(arguments) == 3
    (line,) = commands
    assert line[:3] == ["docker", "run", "--rm"]
    assert line[-len(arguments) :] == arguments
    mounts = list_values(line, "--mount")
    assert mounts[:2] == [
        f"type=bind,source={HERE},target={HERE}",
        f"type=bind,source={tmp_path},target={tmp_path},readonly",
    ]
    assert [part.partition("target=")[2] for part in mounts[2:]] == [
        "/cache/compile",
        "/cache/huggingface",
        "/cache/state,readonly",
    ]
    assert line[line.index("--pull") + 1] == "never"
    assert (list_values(line, "--workdir"), list_values(line, "--network"), list_values(line, "--cap-drop")) == (
        [str(HERE)],
        ["none"],
        ["ALL"],
    )
    assert {"--read-only", "--init"} <= set(line)
    assert capsys.readouterr().out == ""  # it is the table of answers alone
    assert list_values(line, "--memory") == list_values(line, "--memory-swap") == ["4g"]


def test_standard_input_reaches_the_container_if_it_is_asked_for(commands: list[list[str]]) -> None:
    main.main(["predict", "runs/parts-001", "-"])
    main.main(["predict", "runs/parts-001", "runs"])
    assert ["--interactive" in line for line in commands] == [True, False]


def test_head_has_seen_enough() -> None:
    """The engine's client ends with 1 then, which made `predict RUN - | head` fail."""
    reading, writing = os.pipe()
    assert not run_in_image._has_no_reader(writing)
    os.close(reading)
    assert run_in_image._has_no_reader(writing)
    os.close(writing)


def test_a_job_brings_its_limits_and_its_folder(commands: list[list[str]], tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    spec = tmp_path / "job.yaml"
    spec.write_text("name: a\ntask: image-classification\ndata: {train: photos}\nlimits: {cpus: 1, memory: 2g}\n")
    main.main(["find-lr", str(spec), "--set", "limits.shm=64m"])
    (line,) = commands
    assert [list_values(line, key) for key in ("--cpus", "--memory", "--shm-size")] == [["1"], ["2g"], ["64m"]]
    job_mounts = [mount for mount in list_values(line, "--mount") if str(tmp_path) in mount]
    # Each by itself: what else lies beside the spec is nobody's business.
    assert job_mounts == [f"type=bind,source={path},target={path},readonly" for path in (spec, tmp_path / "photos")]
    assert list_values(line, "--network") == ["none"]


@pytest.mark.parametrize(
    ("model", "network"),
    [("{source: transformers, name: some/encoder}", []), ("{source: transformers, name: encoder}", ["none"])],
    ids=["hub", "folder"],
)
def test_a_network_only_for_what_the_job_names(
    commands: list[list[str]], tmp_path: Path, model: str, network: list[str]
) -> None:
    (tmp_path / "encoder").mkdir()
    (tmp_path / "texts.csv").write_text("text,label\na,b\n")
    spec = tmp_path / "job.yaml"
    spec.write_text(
        f"name: a\ntask: text-classification\ndata: {{train: texts.csv, text: text, labels: label}}\nmodel: {model}\n"
    )
    main.main(["memory", str(spec)])
    (line,) = commands
    assert list_values(line, "--network") == network


def test_evaluate_mounts_the_data_that_the_run_was_trained_on(commands: list[list[str]], tmp_path: Path) -> None:
    """The command line names the run alone; the run's own spec names the data."""
    data, run = tmp_path / "photos", tmp_path / "parts-001"
    data.mkdir()
    run.mkdir()
    (run / "job.yaml").write_text(f"name: a\ntask: image-classification\ndata: {{train: {data}}}\n")
    mounted = f"type=bind,source={data},target={data},readonly"
    main.main(["evaluate", str(run)])
    main.main(["evaluate", str(run), "--data", str(run)])
    main.main(["predict", str(run), str(run)])
    assert [mounted in list_values(line, "--mount") for line in commands] == [True, False, False]


def test_a_manifest_of_images_brings_its_folder(commands: list[list[str]], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "list.csv").write_text("path\na.png\n")
    (tmp_path / "run" / "config.json").write_text('{"task": "image-classification"}')
    main.main(["predict", str(tmp_path / "run"), str(tmp_path / "new" / "list.csv")])
    assert f"type=bind,source={tmp_path / 'new'},target={tmp_path / 'new'},readonly" in list_values(
        commands[0], "--mount"
    )


def test_a_home_is_not_mounted_for_a_command(commands: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["predict", "runs", str(Path.home())]) == SpecError.exit_code
    assert says(capsys.readouterr().err, "is-not-mounted-it")
    assert commands == []


def test_training_goes_to_the_image_too(
    no_torch: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After `make train-cpu` alone `drivetrain train` said that torch is missing."""
    requests: list[container.LaunchRequest] = []
    monkeypatch.setattr(container, "launch", lambda request: requests.append(request) or 5)
    monkeypatch.chdir(HERE)
    assert main.main(["train", "jobs/digits.yaml", "--new", "--set", "train.epochs=1"]) == 5
    assert requests == [container.LaunchRequest(Path("jobs/digits.yaml"), ("train.epochs=1",), "cpu", ("--new",))]
    assert says(capsys.readouterr().out, "torch-installed-training-container")
    assert main.main(["train", "jobs/digits.yaml", "--runs", "elsewhere"]) == DeviceError.exit_code
    assert says(capsys.readouterr().err, "run-make-setup-install")
    assert len(requests) == 1


@pytest.mark.parametrize(
    ("line", "flags"),
    [
        ("repeat jobs/digits.yaml --folds 5 --new", ("--new", "--folds", "5")),
        ("inspect jobs/digits.yaml", ("--folds", "5")),
        ("repeat jobs/digits.yaml --seeds 2 --plain", ("--plain", "--seeds", "2")),
        ("sweep jobs/digits.yaml --trials 7", ("--trials", "7")),
    ],
)
def test_what_trains_several_times_goes_to_the_image_too(
    no_torch: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    flags: tuple[str, ...],
) -> None:
    """`repeat` asked for torch, or for a command line of compose."""
    requests: list[container.LaunchRequest] = []
    monkeypatch.setattr(container, "launch", lambda request: requests.append(request) or 75)
    monkeypatch.chdir(HERE)
    assert main.main([*line.split(), "--set", "train.epochs=1"]) == 75
    command, job = line.split()[:2]
    assert requests == [container.LaunchRequest(Path(job), ("train.epochs=1",), flags=flags, command=command)]
    assert main.main([*line.split(), "--runs", "elsewhere"]) == DeviceError.exit_code
    assert says(capsys.readouterr().err, "training-container-supports-runs")


def test_outside_of_the_project(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["report", "runs/parts-001"]) == DeviceError.exit_code
    assert f"cd {HERE}, or `make setup`" in capsys.readouterr().err
    assert commands == []


def test_no_engine_either(monkeypatch: pytest.MonkeyPatch, no_torch: None, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(docker_engine, "connect", lambda: docker_engine.EngineMissing("none is running"))
    assert main.main(["compare", "runs/a-001", "runs/a-002"]) == DeviceError.exit_code
    stderr = capsys.readouterr().err
    assert says(stderr, "compare-needs-torch-installed")
    assert "`make setup`, or `make engine`" in stderr


def test_what_writes_files_of_the_user_runs_as_the_user_who_called_it(
    commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_in_image, "find_spec", lambda name: None)
    monkeypatch.setattr(
        container_limits, "owner", lambda project: {"DRIVETRAIN_UID": "54321", "DRIVETRAIN_GID": "54321"}
    )
    main.main(["init", str(tmp_path), "--output", str(HERE / "photos.yaml")])
    main.main(["report", "runs/parts-001"])
    users = [line[line.index("--user") + 1] for line in commands]
    assert users == [f"{os.getuid()}:{os.getgid()}", "54321:54321"]


def test_an_output_that_the_container_cannot_write(
    commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Root got exit 7 from inside, without a word about whose folder it was."""
    monkeypatch.setattr(
        container_limits, "owner", lambda project: {"DRIVETRAIN_UID": "54321", "DRIVETRAIN_GID": "54321"}
    )
    arguments = ["predict", "runs", str(tmp_path), "--output"]
    assert main.main([*arguments, str(tmp_path / "answers.csv")]) == StorageError.exit_code
    stderr = capsys.readouterr().err
    assert says(stderr, "belongs-uid-root-container", tmp_path, os.getuid(), 54321)
    assert "--output runs/answers.csv" in stderr
    assert commands == []
    tmp_path.chmod(0o777)
    assert main.main([*arguments, str(tmp_path / "answers.csv")]) == 3


def test_an_output_outside_of_the_project_is_mounted_for_writing_unless_its_folder_holds_more(
    commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended in a traceback: the container could not write there."""
    monkeypatch.setattr(container_limits, "SECURE_UID", os.getuid())
    (tmp_path / "new.csv").touch()
    output = tmp_path / "out" / "answers.csv"
    assert main.main(["predict", "runs", str(tmp_path / "new.csv"), "--output", str(output)]) == 3
    mounts = list_values(commands.pop(), "--mount")
    assert f"type=bind,source={tmp_path},target={tmp_path}" in mounts
    assert f"type=bind,source={tmp_path}/new.csv,target={tmp_path}/new.csv,readonly" in mounts
    assert main.main(["predict", "runs", str(tmp_path), "--output", str(output)]) == 3
    assert [part for part in list_values(commands.pop(), "--mount") if str(tmp_path) in part] == [
        f"type=bind,source={tmp_path},target={tmp_path}"
    ]
    assert main.main(["predict", "runs", str(tmp_path), "--output", str(Path.home() / "a.csv")]) == SpecError.exit_code
    assert says(capsys.readouterr().err, "container-would-have-to-write-to", Path.home())
    assert commands == []
    # The container's own disk is read-only, and the message advised to free some space.
    assert main.main(["sample", "table", str(tmp_path / "data" / "new")]) == 3
    assert f"type=bind,source={tmp_path},target={tmp_path}" in list_values(commands.pop(), "--mount")
    assert main.main(["sample", "table", str(Path.home() / "new")]) == SpecError.exit_code
    assert "\n  do:       runs/new, or name" in capsys.readouterr().err
    assert commands == []


def test_a_path_is_one_cell_of_the_engines_row(tmp_path: Path) -> None:
    odd = tmp_path / 'a, "b"\nc\rd: $e'
    row = run_in_image._bind(odd, odd)
    assert next(csv.reader([row])) == ["type=bind", f"source={odd}", f"target={odd}"]
    assert run_in_image._bind(Path("/a"), Path("/b\nc")) == 'type=bind,source=/a,"target=/b\nc"'


def test_the_container_is_hardened_as_compose_says() -> None:
    """compose/base.yaml alone says it: as `docker compose config` reads it, with the variables that are given."""
    options = compose_project.compose_flags({"DRIVETRAIN_MEMORY": "3g", "DRIVETRAIN_CPUS": "1.5"})
    assert options == [
        "--init",
        "--read-only",
        *("--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges:true"),
        *("--ulimit", "core=0"),
        *("--tmpfs", "/tmp:exec,mode=1777,size=512m"),
        *("--cpus", "1.5", "--memory", "3g", "--memory-swap", "3g"),
        *("--shm-size", "256m", "--pids-limit", "512"),
    ]


NOISY = """
from drivetrain.launch.run_in_image import _wait
raise SystemExit(_wait(["sh", "-c", r"printf 'caf\\303\\251\\033]0;owned\\007\\n'; printf '\\033[2Jno\\n' >&2; exit 3"]))
"""


def test_escapes_of_code_in_the_image_do_not_reach_the_terminal(tmp_path: Path) -> None:
    """`find-lr`, `memory` and `bench` run a job's code in the image; what they print into a file stays exact."""
    command = [sys.executable, "-c", NOISY]
    controller, terminal = pty.openpty()
    done = subprocess.run(command, cwd=ROOT, stdout=terminal, stderr=terminal, timeout=60, check=False)
    os.close(terminal)
    text = b""
    with contextlib.suppress(OSError):  # how the end of a terminal is told
        while piece := os.read(controller, 1 << 16):
            text += piece
    os.close(controller)
    assert done.returncode == 3
    assert sorted(text.decode().split()) == ["caf\u00e9\ufffd]0;owned\ufffd", "\ufffd[2Jno"]
    piped = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert piped.stdout == b"caf\xc3\xa9\x1b]0;owned\x07\n"


def test_a_plan_runs_there_only_if_it_times_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended with a traceback where torch is in the image alone."""
    monkeypatch.setattr(run_in_image, "torch_is_missing", lambda: True)
    assert not run_in_image.is_needed("plan")
    assert run_in_image.is_needed("plan", times_steps=True)
