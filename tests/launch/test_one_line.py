"""No control character of a path or an option gets into a file that another program runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drivetrain.errors import SpecError
from drivetrain.launch import command_output
from tests.launch.cluster_site import IMAGE, SPEC, ClusterSite
from tests.messages import saying, says

ENGINES = {
    "slurm": {"shared": ["/"]},
    "k8s": {"image": IMAGE, "runs": "/data/runs", "claims": [{"claim": "a", "at": "/data"}]},
    "skypilot": {"image": IMAGE, "runs": "/data/runs", "volumes": {"/data": "a"}},
}
SUFFIXES = {"slurm": "sbatch", "k8s": "k8s.yaml", "skypilot": "sky.yaml"}
SPEC_ANYWHERE = SPEC.replace("data.npz", "/data/data.npz")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["a\ntouch mark\n", "a\r", "a\x1b[2J", "a\u2028b", "a\udce9"], ids=ascii)
def test_the_name_of_a_folder_is_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], engine: str, name: str
) -> None:
    (folder := tmp_path / name).mkdir()
    site = ClusterSite(engine, ENGINES[engine])
    (folder / "data.npz").touch()
    monkeypatch.chdir(site.prepare(folder, SPEC if engine == "slurm" else SPEC_ANYWHERE))
    assert site.launch() == 2
    stderr = capsys.readouterr().err
    assert "the working folder: " in stderr
    assert says(stderr, "contains-control-character")
    assert not list(folder.glob("tiny.*.*"))
    assert not (folder / f"tiny.{SUFFIXES[engine]}").exists()


@pytest.mark.parametrize(
    "arguments", [["--set", "data.train=/data/a\n b"], ["--output", "a\nb"]], ids=["set", "output"]
)
def test_an_option_is_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    site = ClusterSite("k8s", ENGINES["k8s"])
    monkeypatch.chdir(site.prepare(tmp_path, SPEC_ANYWHERE))
    assert site.launch() == 0
    (tmp_path / "tiny.k8s.yaml").unlink()
    assert site.launch(*arguments) == 2
    assert says(capsys.readouterr().err, "contains-control-character")
    assert not list(tmp_path.glob("*.k8s.yaml"))


def test_an_output_folder_has_no_control_character(tmp_path: Path) -> None:
    (tmp_path / "a\nb").mkdir()
    (tmp_path / "link").symlink_to("a\nb")
    for folder in ("a\nb", "link"):
        with pytest.raises(SpecError, check=saying("contains-control-character")):
            command_output.open_output([tmp_path / folder / "out"], os.getuid(), []).__enter__()
