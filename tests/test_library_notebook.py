"""notebooks/library.ipynb: every form of the library, run from the top in a kernel."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.paths import IMPORTS, ROOT

NOTEBOOK = ROOT / "notebooks" / "library.ipynb"
KERNEL = "drivetrain-library"


def test_it_has_no_output_and_valid_code() -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: `make setup`")
    nbformat.validate(nbformat.read(NOTEBOOK, as_version=4))
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            ast.parse("".join(cell["source"]))


def test_every_form_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: `make setup`")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: `make setup`")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: `make setup`")
    kernel, work = tmp_path / "jupyter" / "kernels" / KERNEL, tmp_path / "work"
    kernel.mkdir(parents=True)
    work.mkdir()
    line = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": line, "display_name": KERNEL, "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (IMPORTS, os.environ.get("PYTHONPATH")))))
    book = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(work)}}
    nbclient.NotebookClient(book, timeout=300, kernel_name=KERNEL, resources=resources).execute()
    outputs = [text(cell) for cell in book.cells if cell.cell_type == "code"]
    assert "plan for arrays (python)" in outputs[1]
    assert outputs[1].count("/20  loss ") < 10  # of 20 steps: lines by time, not by step
    assert "<iframe srcdoc=" in outputs[1]
    assert "validation" in outputs[1].split("<iframe srcdoc=")[1]
    assert outputs[2] == "[0.0005, 0.005]"
    assert "end: ended by on_epoch: one epoch is enough here" in outputs[3]
    assert re.search(r"10 steps; \['validation/accuracy', .*'validation/inside', .*'validation/loss'", outputs[3])
    assert outputs[4] == "all 2 epochs trained\n"
    assert outputs[5] == "runs/dataset-002 all 3 epochs trained\n"
    assert outputs[6].startswith("30 updates; ")


def text(cell: Any) -> str:
    """Everything that a cell has shown; what a notebook shows instead of its text comes last."""
    parts = [output.get("text") or "".join(output.get("data", {}).values()) for output in cell.outputs]
    return "".join(parts)
