"""Imports run one way, and the light modules load no torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.paths import ROOT

LIGHT = [
    "runtime.cli.main",
    "runtime.job_spec.load",
    "runtime.hardware.detect",
    "runtime.hardware.facts_table",
    "runtime.plan.plan",
    "runtime.plan.plan_table",
    "runtime.plan.chip_profiles",
    "runtime.hardware.image_selection",
    "runtime.supervisor.supervisor",
    "runtime.launch.container",
    "runtime.supervisor.run_folder",
    "runtime.job.workload",
    "runtime.inference.predict",
    "runtime.inference.evaluate",
    "runtime.inference.export",
    "runtime.tuning.lr_range",
    "runtime.tuning.memory.profile",
    "runtime.tuning.memory.size_ladder",
    "runtime.data.sample_data.write",
    "runtime.pretrained.convert",
    "runtime.hardware.device_check",
    "runtime.hardware.gpu_selection",
    "runtime.launch.nvidia_toolkit",
    "runtime.launch.container_limits",
    "docs.generate.decision_table",
    "runtime.tuning.bench.bench",
    "runtime.launch.run_in_image",
]


def modules() -> dict[str, Path]:
    names = {}
    for path in (ROOT / "runtime").rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imported(path: Path, known: set[str]) -> Iterator[str]:
    """Project modules that are imported when the module is imported; types and deferred imports do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            below = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else str(node.module) for name in below)


def test_no_cycles() -> None:
    known = modules()
    graph = {name: set(imported(path, set(known))) - {name, "runtime"} for name, path in known.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("name", LIGHT)
def test_light_modules_load_no_torch(name: str) -> None:
    code = f"import sys, {name}; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_optimizations_load_no_torch() -> None:
    code = "import sys; from runtime import optimizations; optimizations.every(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def forbidden(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            yield from (
                name for name in names if name.split(".")[0] in ("pickle", "dill", "joblib", "shelve", "marshal")
            )
        elif isinstance(node, ast.Call):
            text = ast.unparse(node.func)
            if text in ("eval", "exec", "torch.load", "torch.save", "yaml.load", "os.system"):
                yield text
            if any(k.arg in ("allow_pickle", "shell") and ast.unparse(k.value) != "False" for k in node.keywords):
                yield ast.unparse(node)


# The converter of foreign weights: in a process of its own, without network, tensors only.
EXCEPTIONS = {"runtime.pretrained.unpickle_process": ["torch.load"]}


@pytest.mark.parametrize("name", sorted(modules()))
def test_no_way_to_run_what_a_file_says(name: str) -> None:
    """No pickle, eval, exec or shell anywhere in the package."""
    found = list(forbidden(ast.parse(modules()[name].read_text(encoding="utf-8"))))
    assert found == EXCEPTIONS.get(name, []), f"{name}: {found}"
