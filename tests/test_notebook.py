"""notebooks/drivetrain.ipynb: valid, without output, and run from the top in a kernel of its own, installed as on Colab."""

from __future__ import annotations

import ast
import json
import os
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT

NOTEBOOK = ROOT / "notebooks" / "drivetrain.ipynb"
KERNEL = "drivetrain-test"


def cells() -> list[dict[str, Any]]:
    notebook_cells: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return notebook_cells


def test_it_has_no_output_and_valid_code() -> None:
    for cell in (cell for cell in cells() if cell["cell_type"] == "code"):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
        ast.parse("".join(line for line in cell["source"] if not line.startswith("!")))


def test_the_format_is_valid() -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: `make setup`")
    nbformat.validate(nbformat.read(NOTEBOOK, as_version=4))


@pytest.fixture
def one_cpu() -> Iterator[None]:
    """One thread needs no other that waits for a CPU: a busy machine slows it less."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """An environment like Colab's: torch is there, drivetrain is not, and pip may fetch nothing."""
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: `make setup`")
    environment = tmp_path / "host"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    # Packages of this environment, after its own; not the .pth files in there, one of which names this checkout.
    (packages / "installed.pth").write_text("".join(f"{folder}\n" for folder in (*site.getsitepackages(), *extra())))
    kernel = tmp_path / "jupyter" / "kernels" / KERNEL
    kernel.mkdir(parents=True)
    line = [f"{environment}/bin/python", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": line, "display_name": KERNEL, "language": "python"}))
    return environment


def extra() -> list[str]:
    """Folders that a .pth file of this environment adds, but this checkout."""
    return [path for path in sys.path if path.endswith("site-packages") and path not in site.getsitepackages()]


def checkout(folder: Path) -> Path:
    """The files of this checkout, as a clone has them."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.mark.nightly
def test_it_runs_from_the_top(host: Path, tmp_path: Path, one_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: `make setup`")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: `make setup`")
    source, work = checkout(tmp_path / "source"), tmp_path / "work"
    work.mkdir()
    for name, value in {
        "DRIVETRAIN_SOURCE": str(source),
        "JUPYTER_PATH": str(tmp_path / "jupyter"),
        "PATH": f"{host}/bin:{os.environ['PATH']}",
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",  # whatever it needs is there
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it as the negation: use the setuptools that is there
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("PYTHONPATH", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    book = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(book, timeout=600, kernel_name=KERNEL, resources={"metadata": {"path": str(work)}})
    client.execute()
    outputs = [text(cell) for cell in book.cells if cell.cell_type == "code"]
    assert f"torch {torch_version()}" in outputs[1]
    assert "plan for digits (image-classification)" in outputs[2]
    assert "done: all 12 epochs trained" in outputs[3]
    assert "\x1b" not in outputs[3].split("run runs/digits-001 starts")[1]  # lines: a notebook does not move the cursor
    assert "<iframe srcdoc=" in outputs[4]
    assert len((work / "predictions.csv").read_text().splitlines()) == 1798
    assert (work / "runs" / "digits-001" / "model.onnx").is_file()
    assert "mine.yaml" in outputs[7]
    assert (work / "runs" / "circle-001" / "report.html").is_file()
    package = next(host.glob("lib/python*/site-packages/drivetrain/__init__.py"))
    assert package.is_file()


def text(cell: Any) -> str:
    """Everything that a cell has shown."""
    parts = [output.get("text") or "".join(output.get("data", {}).values()) for output in cell.outputs]
    return "".join(parts)


def torch_version() -> str:
    import importlib.metadata

    return importlib.metadata.version("torch")
