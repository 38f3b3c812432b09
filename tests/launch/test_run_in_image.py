"""Commands that run in the image where this environment has no torch: when, how hardened, and what they may see."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from drivetrain.cli import main
from drivetrain.cli.arguments import list_commands, make_parser
from drivetrain.errors import DeviceError, SpecError
from drivetrain.launch import container, container_limits, docker_engine, env_file, run_in_image
from drivetrain.launch.project import PROJECT
from drivetrain.supervisor import named_run
from tests.installed_packages import pretend_installed
from tests.messages import says
from tests.paths import ROOT

HERE = PROJECT


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(monkeypatch, lambda name: None)
    monkeypatch.setattr(
        named_run, "check_exists", lambda path: path
    )  # runs are looked for in tests/supervisor/test_named_run.py
    monkeypatch.delenv("DRIVETRAIN_IMAGE", raising=False)


@dataclass
class Started:
    """What compose was asked to run."""

    words: list[str]
    """After the name of the service."""
    options: list[str]
    service: dict[str, Any]
    variables: Mapping[str, str]

    def list_mounts(self, *, writable: bool = False) -> list[str]:
        """Return where bind mounts are."""
        binds = [mount for mount in self.service["volumes"] if mount["type"] == "bind"]
        return [mount["target"] for mount in binds if mount["read_only"] is not writable]

    def limits(self) -> list[str | None]:
        return [self.variables.get(f"DRIVETRAIN_{name}") for name in ("CPUS", "MEMORY", "SHM", "NETWORK")]


class Engine:
    """An engine of two CPUs that has the image."""

    volumes = SimpleNamespace(create=lambda name, labels: None)

    def info(self) -> dict[str, int]:
        return {"NCPU": 2, "MemTotal": 8 << 30}


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, no_torch: None, tmp_path: Path) -> list[Started]:
    lines: list[Started] = []

    def wait(line: list[str], environ: Mapping[str, str], stop: Any) -> int:
        place, files = line.index("trainer"), [line[i + 1] for i, word in enumerate(line) if word == "--file"]
        override = yaml.safe_load(Path(files[-1]).read_text())
        assert override["volumes"]["state"]["external"]
        lines.append(Started(line[place + 1 :], line[:place], override["services"]["trainer"], environ))
        return 3

    monkeypatch.setattr(docker_engine, "connect", Engine)
    monkeypatch.setattr(docker_engine, "provide_image", lambda client, word: None)
    monkeypatch.setattr(run_in_image, "_wait", wait)
    monkeypatch.setattr(container_limits, "read_env_file", dict)
    monkeypatch.setattr(env_file, "SECURE_UID", os.getuid())
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(HERE)
    return lines


def test_only_where_torch_is_missing(monkeypatch: pytest.MonkeyPatch, no_torch: None) -> None:
    commands = list_commands(make_parser())
    assert {command for command in commands if run_in_image.is_needed(command)} == set(run_in_image.COMMANDS)
    monkeypatch.setenv("DRIVETRAIN_IMAGE", "cpu")
    assert not run_in_image.is_needed("predict")
    monkeypatch.delenv("DRIVETRAIN_IMAGE")
    pretend_installed(monkeypatch, lambda name: object())
    assert not run_in_image.is_needed("predict")


@pytest.mark.parametrize(
    ("package", "has_image", "expected"), [("onnx", True, True), ("onnx", False, False), ("", True, False)]
)
def test_an_export_whose_packages_are_missing_runs_in_an_image_that_is_at_hand(
    monkeypatch: pytest.MonkeyPatch, no_torch: None, package: str, has_image: bool, expected: bool
) -> None:
    pretend_installed(monkeypatch, lambda name: None if name == package else object())
    monkeypatch.setattr(docker_engine, "has_image", lambda word: has_image)
    assert run_in_image.is_needed("export") == expected


def test_an_unfinished_setup_is_no_environment(monkeypatch: pytest.MonkeyPatch, no_torch: None) -> None:
    """`predict` beside a running `make setup` ended with No module named 'numpy'."""
    pretend_installed(monkeypatch, lambda name: None if name == "numpy" else object())
    assert run_in_image.is_needed("predict")


def test_predict_runs_in_the_image(commands: list[Started], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its exit code is ours; the project is where it is, other paths that are named can be read, all else is closed."""
    arguments = ["predict", "runs/parts-001", str(tmp_path), "--output", "runs/answers.csv"]
    assert main.main(arguments) == 3
    (started,) = commands
    assert started.words == arguments
    assert started.list_mounts() == [str(HERE), str(tmp_path)]
    assert started.list_mounts(writable=True) == [str(HERE / "runs")]
    records = {"type": "volume", "source": "state", "target": "/cache/state", "read_only": True}
    assert records in started.service["volumes"]
    assert started.options[:2] == ["docker", "compose"]
    assert {"run", "--rm", "-T", "--no-deps", "--interactive=false"} <= set(started.options)
    assert started.options[started.options.index("--workdir") + 1] == str(HERE)
    assert started.limits() == ["2", "4096m", None, "none"]
    assert capsys.readouterr().out == ""  # it is the table of answers alone


def test_head_has_seen_enough() -> None:
    """The engine's client ends with 1 then, which made `predict RUN FILE | head` fail."""
    reading, writing = os.pipe()
    assert not run_in_image._has_no_reader(writing)
    os.close(reading)
    assert run_in_image._has_no_reader(writing)
    os.close(writing)


def test_a_job_brings_its_limits_and_its_folder(commands: list[Started], tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    spec = tmp_path / "job.yaml"
    spec.write_text("name: a\ntask: image-classification\ndata: {train: photos}\nlimits: {cpus: 1, memory: 2g}\n")
    main.main(["bench", "lr", str(spec), "--set", "limits.shm=64m"])
    (started,) = commands
    assert started.limits() == ["1", "2g", "64m", "none"]
    # Each by itself: what else lies beside the spec is nobody's business.
    assert started.list_mounts()[1:] == [str(spec), str(tmp_path / "photos")]


@pytest.mark.parametrize(
    ("model", "network"),
    [("{source: transformers, name: some/encoder}", "bridge"), ("{source: transformers, name: encoder}", "none")],
    ids=["hub", "folder"],
)
def test_a_network_only_for_what_the_job_names(
    commands: list[Started], tmp_path: Path, model: str, network: str
) -> None:
    (tmp_path / "encoder").mkdir()
    (tmp_path / "texts.csv").write_text("text,label\na,b\n")
    spec = tmp_path / "job.yaml"
    spec.write_text(
        f"name: a\ntask: text-classification\ndata: {{train: texts.csv, text: text, labels: label}}\nmodel: {model}\n"
    )
    main.main(["bench", "memory", str(spec)])
    assert [started.limits()[-1] for started in commands] == [network]


def test_evaluate_mounts_the_data_that_the_run_was_trained_on(commands: list[Started], tmp_path: Path) -> None:
    """The command line names the run alone; the run's own spec names the data."""
    data, run = tmp_path / "photos", tmp_path / "parts-001"
    data.mkdir()
    run.mkdir()
    (run / "job.yaml").write_text(f"name: a\ntask: image-classification\ndata: {{train: {data}}}\n")
    main.main(["evaluate", str(run)])
    main.main(["evaluate", str(run), "--data", str(run)])
    main.main(["predict", str(run), str(run)])
    assert [str(data) in started.list_mounts() for started in commands] == [True, False, False]


def test_a_manifest_of_images_brings_its_folder(commands: list[Started], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "list.csv").write_text("path\na.png\n")
    (tmp_path / "run" / "config.json").write_text('{"task": "image-classification"}')
    main.main(["predict", str(tmp_path / "run"), str(tmp_path / "new" / "list.csv")])
    assert str(tmp_path / "new") in commands[0].list_mounts()


def test_a_comparison_of_runs_elsewhere_is_written_next_to_the_first(commands: list[Started], tmp_path: Path) -> None:
    runs = [tmp_path / "runs" / "a-001", tmp_path / "runs" / "a-002"]
    for run in runs:
        run.mkdir(parents=True)
    main.main(["compare", *map(str, runs)])
    main.main(["compare", "runs/a-001", "runs/a-002"])
    written = [[str(HERE / "runs"), str(tmp_path / "runs")], [str(HERE / "runs")]]
    assert [started.list_mounts(writable=True) for started in commands] == written


def test_a_home_is_not_mounted_for_a_command(commands: list[Started], capsys: pytest.CaptureFixture[str]) -> None:
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
        ("repeat jobs/digits.yaml --seeds 2 --new", ("--new", "--seeds", "2")),
        ("sweep jobs/digits.yaml --new", ("--new",)),
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


def test_no_engine_either(monkeypatch: pytest.MonkeyPatch, no_torch: None, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(docker_engine, "connect", lambda: docker_engine.EngineMissing("none is running"))
    assert main.main(["compare", "runs/a-001", "runs/a-002"]) == DeviceError.exit_code
    stderr = capsys.readouterr().err
    assert says(stderr, "compare-needs-torch-installed")
    assert "`make setup`, or `make engine`" in stderr


def test_what_writes_files_of_the_user_runs_as_the_user_who_called_it(
    commands: list[Started], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_installed(monkeypatch, lambda name: None)
    monkeypatch.setattr(
        container_limits, "owner", lambda project: {"DRIVETRAIN_UID": "54321", "DRIVETRAIN_GID": "54321"}
    )
    main.main(["init", str(tmp_path), "--output", str(HERE / "photos.yaml")])
    main.main(["report", "runs/parts-001"])
    assert [started.variables["DRIVETRAIN_UID"] for started in commands] == [str(os.getuid()), "54321"]


NOISY = """
from drivetrain.launch.run_in_image import _wait
raise SystemExit(_wait(["sh", "-c", r"printf 'caf\\303\\251\\033]0;owned\\007\\n'; printf '\\033[2Jno\\n' >&2; exit 3"]))
"""


def test_escapes_of_code_in_the_image_do_not_reach_the_terminal(tmp_path: Path) -> None:
    """`bench` runs a job's code in the image; what they print into a file stays exact."""
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
