"""Imports run one way, and the light modules load no torch."""

from __future__ import annotations

import ast
import functools
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
    "runtime.launch.clusters.cluster_launch",
    "runtime.supervisor.run_folder",
    "runtime.job.workload",
    "runtime.inference.predict",
    "runtime.inference.evaluate",
    "runtime.inference.export",
    "runtime.tuning.lr_range",
    "runtime.tuning.memory.profile",
    "runtime.tuning.memory.size_ladder",
    "runtime.data.sample_data.write",
    "runtime.cli.init",
    "runtime.pretrained.convert",
    "runtime.hardware.device_check",
    "runtime.hardware.gpu_selection",
    "runtime.launch.nvidia_toolkit",
    "runtime.launch.container_limits",
    "docs.generate.decision_table",
    "runtime.tuning.bench.bench",
    "runtime.launch.run_in_image",
    "runtime.storage.object_store",
]


ORDER = (
    "errors",
    "system",
    "storage",
    "hardware",
    "job",
    "distributed",
    "pretrained",
    "data",
    "models",
    "optimizations",
    "job_spec",
    "plan",
    "tracking",
    "report",
    "training",
    "tuning",
    "inference",
    "supervisor",
    "launch",
    "cli",
)
"""The packages from the bottom up: each imports only what stands before it."""
TOP = ("__init__", "__main__")
"""They hand on names and start the command line; nobody imports them."""


def modules() -> dict[str, Path]:
    names = {}
    for path in (ROOT / "runtime").rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imported(tree: ast.AST, known: set[str]) -> Iterator[str]:
    """Project modules that a file imports anywhere: at module level, inside functions, and for types alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole path"
            if node.module in known:
                below = [f"{node.module}.{alias.name}" for alias in node.names]
                yield from (name if name in known else str(node.module) for name in below)


@functools.cache
def graph() -> dict[str, set[str]]:
    known = modules()
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in known.items()}
    return {name: set(imported(tree, set(known))) - {name} for name, tree in trees.items()}


def package(module: str) -> str:
    """The package of a module, or the file of that name at the top; api stands with plan."""
    name = module.split(".")[1] if "." in module else "__init__"
    return "plan" if name == "api" else name


def upward(edges: dict[str, set[str]]) -> list[str]:
    """Imports of what stands above, and of the files that nobody may import."""
    found = []
    for name, targets in edges.items():
        if package(name) in TOP:
            continue
        for target in targets:
            above = package(target) in TOP or ORDER.index(package(target)) > ORDER.index(package(name))
            if above or target.endswith(".__main__"):
                found.append(f"{name} imports {target}")
    return sorted(found)


def test_every_package_has_its_place() -> None:
    assert {package(name) for name in modules()} == {*ORDER, *TOP}


def test_imports_run_one_way() -> None:
    """Every import: what is there for types alone or inside of a function makes two packages one just as well."""
    assert upward(graph()) == []


def circle(edges: dict[str, set[str]]) -> list[str]:
    """The modules of one circle, if there is any."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_circles() -> None:
    """Between no two files, type-only imports included; `runtime` itself only hands names on."""
    edges = {name: targets - {"runtime"} for name, targets in graph().items()}
    assert circle(edges) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("runtime.plan.plan", "from runtime.training import run"),
        ("runtime.plan.plan", "def work():\n    from runtime.cli.main import main"),
        ("runtime.system.files", "if TYPE_CHECKING:\n    import runtime.job.values"),
        ("runtime.errors", "from runtime.system import files"),
        ("runtime.training.run", "from runtime import train"),
        ("runtime.cli.main", "from runtime.report.__main__ import main"),
    ],
)
def test_an_upward_import_is_detected(module: str, line: str) -> None:
    planted = set(imported(ast.parse(line), set(modules())))
    assert len(upward({module: planted})) == 1


def test_an_import_cycle_is_detected() -> None:
    line = "if TYPE_CHECKING:\n    from runtime.plan.plan import Plan"
    edges = dict(graph())
    edges["runtime.optimizations"] = {*imported(ast.parse(line), set(edges))}
    edges = {name: edges[name] for name in ("runtime.optimizations", "runtime.plan.plan")}
    assert set(circle(edges)) >= {"runtime.optimizations", "runtime.plan.plan"}


def test_test_files_are_tests() -> None:
    """What is called a test lies in tests/, so that no tool collects a program of ours."""
    named = [path for name in ("*_test.py", "test_*.py") for path in ROOT.rglob(name)]
    inside = [path.relative_to(ROOT).parts for path in named if not any(part.startswith(".") for part in path.parts)]
    assert {parts[0] for parts in inside} == {"tests"}


def heavy(names: list[str]) -> str:
    """The first of these modules that loads torch or NumPy, all imported by one new process."""
    code = (
        "import importlib, sys\n"
        f"for name in {names}:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules or 'numpy' in sys.modules: sys.exit(name)"
    )
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False).stderr


def test_light_modules_load_no_torch() -> None:
    assert heavy(LIGHT) == ""


def test_a_heavy_module_is_detected() -> None:
    assert heavy(["runtime.errors", "runtime.training.run", "runtime.cli.main"]) == "runtime.training.run\n"


def test_a_look_at_data_loads_no_torch() -> None:
    """The readers need numpy, and no more."""
    code = "import sys, runtime.data.survey.look; sys.exit('torch' in sys.modules)"
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
