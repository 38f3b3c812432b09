"""Imports run one way, and the light modules load no torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.module_graph import ORDER, TOP, find_imports, graph, modules, package
from tests.paths import PACKAGE, ROOT

LIGHT = [
    "drivetrain.cli.main",
    "drivetrain.job_spec.load_job",
    "drivetrain.hardware.detect",
    "drivetrain.hardware.facts_table",
    "drivetrain.plan.plan",
    "drivetrain.plan.plan_table",
    "drivetrain.plan.chip_profiles",
    "drivetrain.hardware.image_selection",
    "drivetrain.supervisor.supervisor",
    "drivetrain.launch.container",
    "drivetrain.supervisor.run_folder",
    "drivetrain.job.workload",
    "drivetrain.inference.predict",
    "drivetrain.inference.evaluate",
    "drivetrain.inference.export",
    "drivetrain.tuning.measuring_request",
    "drivetrain.cli.init",
    "drivetrain.pretrained.convert",
    "drivetrain.hardware.device_check",
    "drivetrain.hardware.gpu_selection",
    "drivetrain.launch.nvidia_toolkit",
    "drivetrain.launch.container_limits",
    "docs.generate.decision_table",
    "drivetrain.launch.run_in_image",
    "drivetrain.storage.object_store",
]


def upward(edges: dict[str, set[str]]) -> list[str]:
    """Imports of what stands above, and of the files that nobody may import."""
    violations = []
    for name, targets in edges.items():
        if package(name) in TOP:
            continue
        for target in targets:
            above = package(target) in TOP or ORDER.index(package(target)) > ORDER.index(package(name))
            if above or target.endswith(".__main__"):
                violations.append(f"{name} imports {target}")
    return sorted(violations)


def test_every_package_has_its_place() -> None:
    assert {package(name) for name in modules()} == {*ORDER, *TOP}


def test_imports_run_one_way() -> None:
    """Every import: what is there for types alone or inside of a function makes two packages one just as well."""
    assert upward(graph()) == []


BUILDS_ON = {"audio": "image"}
"""Sounds are files in the same folders and manifests as images, and their spectrograms train the same networks."""


def find_kind(module: str) -> str:
    """The folder of a kind of data that a module is in; empty for other modules."""
    parts = module.split(".")
    return parts[2] if parts[1:2] == ["tasks"] and len(parts) > 2 and (PACKAGE / "tasks" / parts[2]).is_dir() else ""


def test_nothing_imports_the_folder_of_a_kind() -> None:
    """The registry names it; all others ask the registry."""
    violations = [
        f"{name} imports {target}"
        for name, targets in graph().items()
        for target in targets
        if find_kind(target) not in ("", find_kind(name), BUILDS_ON.get(find_kind(name))) and name != "drivetrain.tasks"
    ]
    assert violations == []


def circle(edges: dict[str, set[str]]) -> list[str]:
    """The modules of one circle, if there is any."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_circles() -> None:
    """Between no two files, type-only imports included; `drivetrain` itself only hands names on."""
    edges = {name: targets - {"drivetrain"} for name, targets in graph().items()}
    assert circle(edges) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("drivetrain.plan.plan", "from drivetrain.training import run"),
        ("drivetrain.plan.plan", "def work():\n    from drivetrain.cli.main import main"),
        ("drivetrain.system.files", "if TYPE_CHECKING:\n    import drivetrain.job.values"),
        ("drivetrain.errors", "from drivetrain.system import files"),
        ("drivetrain.training.run", "from drivetrain import train"),
        ("drivetrain.cli.main", "from drivetrain.report.__main__ import main"),
    ],
)
def test_an_upward_import_is_detected(module: str, line: str) -> None:
    imports = set(find_imports(ast.parse(line), set(modules())))
    assert len(upward({module: imports})) == 1


def test_an_import_cycle_is_detected() -> None:
    line = "if TYPE_CHECKING:\n    from drivetrain.plan.plan import Plan"
    edges = dict(graph())
    edges["drivetrain.optimizations"] = {*find_imports(ast.parse(line), set(edges))}
    edges = {name: edges[name] for name in ("drivetrain.optimizations", "drivetrain.plan.plan")}
    assert set(circle(edges)) >= {"drivetrain.optimizations", "drivetrain.plan.plan"}


def test_test_files_are_tests() -> None:
    """What is called a test lies in tests/, so that no tool collects a program of ours."""
    paths = [path for name in ("*_test.py", "test_*.py") for path in ROOT.rglob(name)]
    inside = [path.relative_to(ROOT).parts for path in paths if not any(part.startswith(".") for part in path.parts)]
    assert {parts[0] for parts in inside} == {"tests"}


def find_heavy(names: list[str]) -> str:
    """The first of these modules that loads torch or NumPy, all imported by one new process."""
    code = (
        "import importlib, sys\n"
        f"for name in {names}:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules or 'numpy' in sys.modules: sys.exit(name)"
    )
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False).stderr


def test_light_modules_load_no_torch() -> None:
    assert find_heavy(LIGHT) == ""


def test_a_heavy_module_is_detected() -> None:
    assert (
        find_heavy(["drivetrain.errors", "drivetrain.training.run", "drivetrain.cli.main"])
        == "drivetrain.training.run\n"
    )


def test_a_look_at_data_loads_no_torch() -> None:
    """The readers need numpy, and no more."""
    code = "import sys, drivetrain.data.survey.look; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_optimizations_load_no_torch() -> None:
    code = "import sys; from drivetrain import optimizations; optimizations.every(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def list_forbidden(tree: ast.AST) -> Iterator[str]:
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
EXCEPTIONS = {"drivetrain.pretrained.unpickle_process": ["torch.load"]}


def test_no_way_to_run_what_a_file_says() -> None:
    """No pickle, eval, exec or shell anywhere in the package."""
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in modules().items()}
    violations = {name: calls for name, tree in trees.items() if (calls := list(list_forbidden(tree)))}
    assert violations == EXCEPTIONS


def test_nothing_stands_below_the_start_of_a_program() -> None:
    """What is defined there does not exist yet when the program runs; an import finds it, and so does mypy."""
    for path in PACKAGE.rglob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        starts = [n for n, node in enumerate(body) if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)]
        assert all(number == len(body) - 1 for number in starts), path


def test_every_public_name_is_there() -> None:
    import drivetrain

    assert all(getattr(drivetrain, name) is not None for name in drivetrain.__all__)
