"""`drivetrain launch --on`: the site file, what is refused before submitting, the file that is written, and --submit."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from drivetrain.cli import main
from tests.launch.cluster_site import SPEC
from tests.messages import says
from tests.paths import ROOT


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a job, and a site that shares it."""
    (tmp_path / "data.npz").touch()
    (tmp_path / "tiny.yaml").write_text(SPEC)
    site(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def site(folder: Path, **keys: object) -> None:
    shared = [str(folder), str(ROOT), sys.prefix]
    (folder / "site.yaml").write_text(json.dumps({"slurm": {"shared": shared, **keys}}))


def launch(*words: str) -> int:
    return main.main(["launch", "tiny.yaml", "--on", "slurm", "--site", "site.yaml", *words])


def options(folder: Path) -> list[str]:
    lines = (folder / "tiny.sbatch").read_text().splitlines()
    return [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]


def test_one_file_is_written_and_the_command_that_submits_it_printed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site(folder, time="4h", grace="5m", options={"partition": "gpu", "exclusive": False, "comment": "a b"})
    assert launch("--nodes", "2", "--per-node", "3", "--set", "train.epochs=2", "--plain") == 0
    out = capsys.readouterr().out
    assert f"{folder}/tiny.sbatch written: 2 nodes, 3 processes on each" in out
    assert says(out, "to-submit-it-sbatch", folder, "/tiny.sbatch")
    assert says(out, "compared-step-save")
    assert options(folder) == [
        "--job-name=tiny",
        f"--chdir={folder}",
        f"--output={folder}/tiny-%j.log",
        "--open-mode=append",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--signal=TERM@300",
        "--requeue",
        "--no-kill",
        "--time=240",
        "--cpus-per-task=2",
        "--mem=4096M",
        "--partition=gpu",
        "'--comment=a b'",
    ]
    train = f"train=({sys.executable} -m drivetrain train {folder}/tiny.yaml --set train.epochs=2 --set limits.nodes=2 "
    assert train + "--set limits.processes=3 --set limits.gpus=none --plain)" in (folder / "tiny.sbatch").read_text()


def test_gpus_are_asked_for_and_all_used(folder: Path) -> None:
    site(folder, command=["apptainer", "exec", "--nv", "/images/train.sif", "drivetrain"], setup=["module load cuda"])
    assert launch("--device", "gpu", "--per-node", "4") == 0
    assert "--gpus-per-node=4" in options(folder)
    text = (folder / "tiny.sbatch").read_text()
    assert "\nmodule load cuda\ntrain=(apptainer exec --nv /images/train.sif drivetrain train " in text
    assert "--set limits.nodes=1 --set limits.gpus=all)" in text
    site(folder, options={"gres": "gpu:a100:4"})
    assert launch("--device", "gpu", "--per-node", "4") == 0
    assert not any("gpus-per-node" in option for option in options(folder))


def test_an_edited_file_is_not_lost(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch() == 0
    assert launch() == 0
    assert "tiny.sbatch is unchanged" in capsys.readouterr().out
    (folder / "tiny.sbatch").write_text("mine")
    assert launch() == 0
    assert says(capsys.readouterr().out, "earlier-one-is-now", "tiny.sbatch.before")
    assert (folder / "tiny.sbatch.before").read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("slurm:\n  grce: 1m\n", "site.yaml:2:3: slurm.grce: unknown key"),
        ("slurm:\n  shared: [home]\n", "site.yaml:2:12: slurm.shared[0]: is 'home'\n  possible: the absolute path"),
        ("slurm:\n  grace: 20\n", "site.yaml:2:3: slurm.grace: is 20\n  possible: a duration with its unit"),
        (
            "slurm:\n  options: {nodes: 2}\n",
            "site.yaml:2:13: slurm.options.nodes: is 'nodes'\n  possible: other keys",
        ),
        ('slurm:\n  setup: ["a\\nb"]\n', "site.yaml:2:11: slurm.setup[0]: is 'a\\nb'\n  possible: text on one line"),
        ("slurm: {time: 5m, grace: 5m}", "slurm.grace is 5m, and slurm.time is 5m"),
        ("slurm: [", "site.yaml:1:9: "),
        ("slurm: {srun: [--container-image=x/y:1]}", "the image x/y:1 is named by a tag"),
        ("slurm: {command: [apptainer, exec, 'docker://x/y:1', drivetrain]}", "the image docker://x/y:1 is named by"),
    ],
)
def test_a_wrong_site_file_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, expected: str
) -> None:
    (folder / "site.yaml").write_text(text)
    assert launch() == 2
    assert expected in capsys.readouterr().err
    assert not (folder / "tiny.sbatch").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--nodes", "0"], "--nodes 0\n"),
        (["--nodes", "2", "--set", "limits.nodes=3"], "limits.nodes: is 3, and --nodes is 2"),
        (["--set", "limits.nodes={least: 2}"], "limits.nodes: is 2 or more, and nothing says how many to ask for"),
        (["--nodes", "1", "--set", "limits.nodes={least: 2}"], "limits.nodes: is 2 or more, and --nodes is 1"),
        (["--nodes", "5", "--set", "limits.nodes={least: 2, most: 4}"], "possible: --nodes from 2 to 4"),
        (["--per-node", "2", "--set", "limits.processes=3"], "limits.processes: is 3, and --per-node is 2"),
        (["--nodes", "8", "--per-node", "5"], "train.batch_size: is 32, and 8 nodes with 5 processes each are 40"),
        (["--new"], "--new with --on slurm"),
        (["--image", "x"], "--image with --on slurm"),
        (["--device", "gpu", "--set", "limits.gpus=none"], "--device gpu, and limits.gpus is none"),
        (["--site", "lost.yaml"], "--site lost.yaml: No such file"),
    ],
)
def test_what_cannot_train_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert launch(*arguments) == 2
    assert expected in capsys.readouterr().err
    assert not (folder / "tiny.sbatch").exists()


@pytest.mark.parametrize(("options", "most"), [((), 4), (("--nodes", "3"), 3)])
def test_a_range_of_nodes_stays_one(
    folder: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], most: int
) -> None:
    """Slurm gives what it has, and each attempt takes what is left."""
    assert launch("--set", "limits.nodes={least: 2, most: 4}", *options) == 0
    assert f"2 to {most} nodes, 1 process on each" in capsys.readouterr().out
    text = (folder / "tiny.sbatch").read_text()
    assert f"#SBATCH --nodes=2-{most}\n" in text
    assert "#SBATCH --ntasks-per-node" not in text, "Slurm gives only so many nodes then"
    assert "\nleast=2 " in text
    assert "--set 'limits.nodes={least: 2, most: 4}' --set limits.processes=1 " in text


def test_files_that_the_nodes_do_not_see_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["launch", "tiny.yaml", "--on", "slurm"]) == 2
    err = capsys.readouterr().err
    assert says(err, "is-not-in-shared-folder", "tiny.yaml", 3, 8, "data.train", folder, "/data.npz")
    assert says(err, "runs-runs-shared-folder", folder)
    assert says(err, "python-shared-folder", sys.prefix)
    site(folder, shared=[str(folder)], command=["/opt/drivetrain"])
    assert launch() == 0


def test_the_grace_period_is_compared_with_an_earlier_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = folder / "runs" / "tiny-001"
    run.mkdir(parents=True)
    result = {"steps": 10, "seconds": 400, "epochs": 1, "phases": {"train": 300, "checkpoint": 100}}
    (run / "result.json").write_text(json.dumps(result))
    site(folder, grace="80s")
    assert launch() == 2  # 30 s a step, 50 s for each of two saves, 4 s for the report
    assert says(capsys.readouterr().err, "slurm-grace-step-save", 84, "tiny-001")
    site(folder, grace="90s")
    assert launch() == 0
    assert says(capsys.readouterr().out, "grace-period-step-save", 84, "tiny-001")


def test_options_of_a_cluster_need_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["launch", "tiny.yaml", "--nodes", "2"]) == 2
    assert "--nodes without --on" in capsys.readouterr().err


def test_submit_calls_the_engines_own_tool(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(folder))
    assert launch("--submit") == 9
    assert says(capfd.readouterr().err, "there-is-no-sbatch-here")
    (folder / "sbatch").write_text('#!/bin/sh\necho "got $1"\n')
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin")
    assert launch("--submit") == 0
    assert f"got {folder}/tiny.sbatch" in capfd.readouterr().out
    (folder / "sbatch").write_text("#!/bin/sh\nexit 1\n")
    assert launch("--submit") == 9
    assert says(capfd.readouterr().err, "sbatch-ended-exit-code", 1)


@pytest.mark.parametrize("engine", ["k8s", "skypilot"])
def test_the_section_of_the_engine_is_needed(folder: Path, capsys: pytest.CaptureFixture[str], engine: str) -> None:
    assert main.main(["launch", "tiny.yaml", "--on", engine, "--site", "site.yaml"]) == 2
    assert f"site.yaml: no {engine} section" in capsys.readouterr().err
