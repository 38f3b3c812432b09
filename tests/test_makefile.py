"""The Makefile: which job it hands on, and that it never trains another one than it was asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.messages import omits, says, says_only
from tests.paths import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose Python prints its words."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed: apt-get install make")
    shutil.copy2(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "mine.yaml").touch()
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nprintf "[%s]" "$@"\n')
    python.chmod(0o755)
    (tmp_path / ".venv" / "host").touch()
    return tmp_path


def run_make(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # `make test` runs these tests: what it hands on would make this make a part of it, which prints more lines.
    handed_on = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "JOB", "ARGS")
    clean = {key: value for key, value in os.environ.items() if key not in handed_on}
    return subprocess.run(["make", *arguments], cwd=checkout, env=clean, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["jobs/mine.yaml"], "jobs/mine.yaml is not a make target"),
        (["jobs/absent.yaml"], "jobs/absent.yaml is not a make target"),
        (["elsewhere/job.yml"], "elsewhere/job.yml is not a make target"),
        (["digits"], "digits is not a make target"),
        (["mine.json"], "mine.json is not a make target"),
        (["jobs"], "jobs is not a make target"),
        (["train.epochs=3"], "train.epochs= is not a variable of this Makefile"),
        (["job=jobs/mine.yaml"], "job= is not a variable of this Makefile"),
        (["JOBS=jobs/mine.yaml"], "JOBS= is not a variable of this Makefile"),
        (["JBO=jobs/mine.yaml"], "JBO= is not a variable of this Makefile"),
        (["args=--new"], "args= is not a variable of this Makefile"),
        (["EPOCHS=3"], "EPOCHS= is not a variable of this Makefile"),
    ],
)
@pytest.mark.parametrize("target", ["train-cpu", "train-gpu"])
def test_only_the_requested_job_is_trained(checkout: Path, target: str, arguments: list[str], message: str) -> None:
    done = run_make(checkout, target, *arguments)
    assert done.returncode == 2
    assert "launch" not in done.stdout
    assert message in done.stderr
    assert "possible: JOB=FILE and ARGS='OPTIONS'" in done.stderr
    assert "do:       make train-cpu JOB=" in done.stderr


@pytest.mark.parametrize("job", ["jobs/mine.yaml", "my jobs/a 'b' (c).yaml", 'jobs/a"b.yaml', "jobs/a$b$(c).yaml"])
def test_the_job_is_one_argument(checkout: Path, job: str) -> None:
    done = run_make(checkout, "train-cpu", f"JOB={job}", "ARGS=--set train.epochs=3")
    assert done.stdout == f"[-m][drivetrain][launch][{job}][--set][train.epochs=3]", done.stderr


def test_other_variables_and_the_default(checkout: Path) -> None:
    assert run_make(checkout, "train-cpu", "PROGRESS=plain").stdout == "[-m][drivetrain][launch][jobs/digits.yaml]"


def test_stop_names_what_it_stops(tmp_path: Path) -> None:
    """It printed an id."""
    engine = tmp_path / "docker"
    engine.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        "    *.Names*) echo drivetrain-ab12-digits-trainer-1 ;;\n"
        "    ps*) echo 0a1b2c ;;\n"
        '    stop*) echo "$@" >"$0.stopped"; shift 3; echo "$@" ;;\n'
        "esac\n"
    )
    engine.chmod(0o755)
    line = [str(ROOT / "scripts" / "containers"), "stop"]
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(line, env=path, capture_output=True, text=True, check=True)
    name = "drivetrain-ab12-digits-trainer-1"
    assert says_only(done.stdout, "stop-saves-checkpoint-command", name)
    assert (tmp_path / "docker.stopped").read_text() == f"stop -t 60 {name}\n"
    engine.write_text("#!/bin/sh\n")
    done = subprocess.run(line, env=path, capture_output=True, text=True, check=True)
    assert says_only(done.stdout, "stop-training-container-checkout")


def test_every_target_of_the_help_is_one(checkout: Path) -> None:
    targets = [line.split()[1] for line in run_make(checkout, "help").stdout.splitlines() if line.startswith("  make ")]
    assert "reference" in targets
    assert says(run_make(checkout, "-n", "digits").stderr, "is-not-make-target")
    for target in targets:
        assert omits(run_make(checkout, "-n", target).stderr, "is-not-make-target")
