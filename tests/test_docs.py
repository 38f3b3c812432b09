"""The README and docs/: every command exists and takes what is written, every spec is valid, every link leads somewhere."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import drivetrain
from drivetrain import errors
from drivetrain.cli import main
from drivetrain.cli.arguments import make_parser
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import parse
from tests import tiny
from tests.paths import GOLDEN, ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "README.es.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "docker" / "README.md",
    ROOT / "tests" / "promises.md",
]
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
SPAN = re.compile(r"`((?:drivetrain|make) [^`]+)`")


def blocks(page: Path) -> list[str]:
    """Lines that are to be typed: indented by four, without their comments."""
    lines = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL).splitlines()
    return [re.sub(r"\s{2,}#.*|\s{3,}.*$", "", line.strip()) for line in lines if line.startswith("    ")]


def commands() -> list[tuple[str, str]]:
    """(page, command) for everything that starts with `drivetrain` or `make`."""
    typed_commands = []
    for page in PAGES:
        typed = [
            part.strip().removeprefix(".venv/bin/")
            for line in blocks(page)
            for part in re.split(r"&&| > |,(?= make)", line)
        ]
        typed += SPAN.findall(page.read_text())
        typed_commands += [
            (page.name, line) for line in typed if line.startswith(("drivetrain ", "make ")) and "..." not in line
        ]
    return sorted(set(typed_commands))


@pytest.mark.parametrize(("page", "line"), commands())
def test_a_documented_command_exists_with_its_options(page: str, line: str) -> None:
    arguments = [word for word in shlex.split(line.replace("[", "").replace("]", "")) if not word.startswith("$")]
    if arguments[0] == "make":
        assert [word for word in arguments[1:] if "=" not in word and word not in TARGETS] == []
        return
    words = 3 if arguments[1] == "bench" else 2
    if len(arguments) > words or arguments[1] in ("doctor",):
        make_parser().parse_args([{"KIND": "images"}.get(word, word) for word in arguments[1:]])
    else:
        with pytest.raises(SystemExit) as caught:
            make_parser().parse_args([*arguments[1:words], "--help"])
        assert caught.value.code == 0


def test_every_name_of_the_library_can_be_imported_from_it() -> None:
    """`except drivetrain.Stopped` was an AttributeError, which hid the stop."""
    notebooks, scripts = (ROOT / "notebooks").glob("*.ipynb"), (ROOT / "jobs").rglob("*.py")
    texts = {path: path.read_text(encoding="utf-8") for path in (*PAGES, *notebooks, *scripts)}
    texts |= {
        Path(member.__qualname__): inspect.getdoc(member) or ""
        for name in drivetrain.__all__
        for member in (getattr(drivetrain, name), *vars(getattr(drivetrain, name)).values())
        if callable(member)
    }
    not_exported = {"Failure", "Replanned", "RestartSmaller", "PeerError", "Problem"}
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)} - not_exported
    named: set[str] = set()
    for path, text in texts.items():
        names = set(re.findall(r"(?<![\w./-])drivetrain\.([A-Za-z]\w*)", text)) - {"ipynb", "sif"}
        names |= classes & set(re.findall(r"(?:`|^ *)(\w+)(?:`|:)", text, re.MULTILINE))
        assert names <= {*drivetrain.__all__, "__version__"}, (path, names)
        named |= names
    assert named >= {"Stopped", "UserCodeError", "NumericsError", "StopTraining"}


def specs() -> list[tuple[str, str]]:
    return [
        (page.name, text) for page in PAGES for text in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    ]


@pytest.mark.parametrize(("page", "text"), specs())
def test_a_spec_is_valid(page: str, text: str) -> None:
    job_spec.check(parse(text, page))


def test_links_have_targets() -> None:
    dead = [
        (page.name, link)
        for page in PAGES
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / link).exists()
    ]
    assert dead == []


def messages() -> str:
    """Every string of the package but its docstrings."""
    texts = []
    for path in sorted((ROOT / "runtime" / "drivetrain").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstring_ids = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts += [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstring_ids
        ]
    return "\n".join(texts)


def test_messages_that_troubleshooting_quotes_exist() -> None:
    quotes = re.findall(r'"([^"]+)"', (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"))
    texts = messages()
    assert quotes
    assert [text for text in quotes if text not in texts] == []


def test_the_plan_that_a_page_shows_is_the_one_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "plan-and-report.md").read_text()
    command = re.search(r"`drivetrain (plan jobs/\S+ --hardware \S+)`", page)
    assert command
    assert main.main(command[1].split()) == 0
    golden = (GOLDEN / "plan.txt").read_text()
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == golden.splitlines(), (
        "run `make reference`"
    )
    assert golden.startswith(page.split("```\n")[1])


def copy_project(folder: Path) -> None:
    """The project as a clone has it, without its tests."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if not name.startswith("tests/") and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def test_the_documented_optimization_is_valid(tmp_path: Path) -> None:
    """The file that CONTRIBUTING.md names: a row of the plan, refused and applied as it says, with the same bits."""
    copy_project(tmp_path)
    path = tmp_path / "runtime" / "drivetrain" / "optimizations" / "relu_inplace.py"
    shutil.copy(ROOT / "tests" / "docs" / "relu_inplace.py", path)
    command = [
        sys.executable,
        "-m",
        "drivetrain",
        "plan",
        "jobs/digits.yaml",
        "--json",
        "--set",
        "optimize.relu_inplace=true",
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}/runtime:{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    rows = {row["name"]: row for row in json.loads(done.stdout)["decisions"]}
    assert (rows["relu_inplace"]["value"], rows["relu_inplace"]["source"]) == (True, "job")
    module_spec = importlib.util.spec_from_file_location("relu_inplace", path)
    assert module_spec
    assert module_spec.loader
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    plain_run, optimized_run = (tiny.assemble_run(tmp_path / name, tiny.job()) for name in ("plain", "made"))
    for relu in module._all(optimized_run):
        relu.inplace = False
    assert module.effective(optimized_run) is False
    module.apply(optimized_run, True)
    assert module.effective(optimized_run) is True
    assert tiny.losses(optimized_run, 4) == tiny.losses(plain_run, 4)


@pytest.mark.slow
def test_from_nothing_to_a_prediction(tmp_path: Path) -> None:
    """The walk at the end of docs/your-data.md."""
    copy_project(tmp_path)
    page = ROOT / "docs" / "your-data.md"
    samples = re.search(r"make samples ARGS='(.*)'", page.read_text(encoding="utf-8"))
    assert samples
    walk = [line for line in blocks(page) if line.startswith("drivetrain ")]
    assert [line.split()[1] for line in walk] == ["train", "predict", "evaluate"]
    walk_text = page.read_text(encoding="utf-8").partition("## From nothing")[2]
    make_command = re.search(r"`(make train-cpu [^`]*)`", walk_text)
    assert make_command
    assert make_command[1] == f"make train-cpu JOB={walk[0].split()[2]} ARGS='{walk[0].split(maxsplit=3)[3]}'"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}/runtime:{tmp_path}", "COLUMNS": "200"}
    for line in [f"jobs.samples.write {samples[1]}", *walk]:
        done = subprocess.run(
            [sys.executable, "-m", *shlex.split(line)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
    answers = tmp_path / walk[1].split("--output ")[1].split()[0]
    assert len(answers.read_text().splitlines()) == 301
