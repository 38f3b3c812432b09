"""The templates of `launch --on`: every name has a value, every value is used, and none is more than one value."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from drivetrain.errors import SpecError
from drivetrain.job_spec.spec_source import COPY_VARIABLE
from drivetrain.launch.clusters import cluster_launch


def fill(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, **values: object) -> str:
    (folder / "file").write_text(text)
    monkeypatch.setattr(cluster_launch, "FOLDER", folder)
    return cluster_launch.fill("file", values)


@pytest.mark.parametrize(
    ("text", "values"), [("a {{x}} {{y}}\n", {"x": 1}), ("a\n", {"x": 1}), ("## {{x}}\n", {"x": 1})]
)
def test_names_and_values_have_to_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, values: dict[str, object]
) -> None:
    with pytest.raises(SpecError, match="correct the template"):
        fill(tmp_path, monkeypatch, text, **values)


@pytest.mark.parametrize("value", ["a b", "$HOME", "`x`", "it's", "a\nb", "{{y}}", "yes", "1", "a: b", "# a", ""])
def test_a_value_is_one_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    assert shlex.split(fill(tmp_path, monkeypatch, "run --to={{x}}\n", x=value)) == ["run", f"--to={value}"]
    assert shlex.split(fill(tmp_path, monkeypatch, "run {{x}}\n", x=[value, value])) == ["run", value, value]
    text = "a:\n  b: {{x}}\n  c:\n  - d: 1\n    {{y}}\n  {{z}}\n"
    filled = fill(tmp_path, monkeypatch, text, x=value, y={"e": value}, z=[{"f": [value]}, value])
    assert yaml.safe_load(filled) == {"a": {"b": value, "c": [{"d": 1, "e": value}, {"f": [value]}, value]}}


def test_lines_without_a_value_and_hints_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "## hint {{x}}\n# {{x}}\n  {{y}}\nz: {{z}}\n{{t}}\nend\n"
    assert (
        fill(tmp_path, monkeypatch, text, x="two words", y={}, z=None, t="a\n\n  b\n") == "# two words\na\n\n  b\nend\n"
    )
    with pytest.raises(SpecError, match="control character"):
        fill(tmp_path, monkeypatch, "# {{x}}\n", x="a\nrm -r /")


def test_a_text_is_indented_and_stays_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = "name: a  # é\n\n     \n\tb\n"
    filled = fill(tmp_path, monkeypatch, "run: |\n  first\n  {{x}}\n", x=value)
    assert yaml.safe_load(filled)["run"] == f"first\n{value}"


def test_the_copy_of_a_job_has_the_name_that_train_reads() -> None:
    assert f'"{COPY_VARIABLE}=$copy"' in (cluster_launch.FOLDER / "slurm.sbatch").read_text()
