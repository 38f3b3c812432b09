"""Files of one's own: what is wrong with them is found without running them, and without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain.errors import SpecError
from drivetrain.job.user_files import CHECK_PATH, find_misplacement, suggest_nearest_path
from drivetrain.job_spec import load_job as job_spec
from tests.own_job import LOSS, MODEL, job, write_job
from tests.paths import IMPORTS

BESIDE = "a Python file next to the job file"
OFFERED = "outputs, classes, inputs, vocabulary, categories are set from the data"

# Files, parts of the spec, and the message without the name of the folder.
BAD = {
    "not there": (
        {},
        {"train": "loss: {file: lost.py}"},
        ("job.yaml:5:43: train.loss.file: 'lost.py' does not exist", BESIDE, 'did you mean "my_loss.py"?'),
    ),
    "another kind of file": (
        {},
        {"train": "loss: {file: my_loss.txt}"},
        ("job.yaml:5:43: train.loss.file: is 'my_loss.txt'", BESIDE, "name a .py file"),
    ),
    "absolute": (
        {},
        {"train": "loss: {file: /etc/my_loss.py}"},
        (
            "job.yaml:5:43: train.loss.file: is '/etc/my_loss.py'",
            f"{BESIDE}, as a relative path without `..`",
            "put the file next to the job file",
        ),
    ),
    "above the job": (
        {},
        {"train": "loss: {file: a/../../my_loss.py}"},
        (
            "job.yaml:5:43: train.loss.file: is 'a/../../my_loss.py'",
            f"{BESIDE}, as a relative path without `..`",
            "put the file next to the job file",
        ),
    ),
    "a folder": (
        {"folder.py/x.txt": ""},
        {"train": "loss: {file: folder.py}"},
        ("job.yaml:5:43: train.loss.file: 'folder.py' is not a file", BESIDE, "name a file"),
    ),
    "no path": (
        {},
        {"train": 'loss: {file: "a\\0.py"}'},
        ("job.yaml:5:43: train.loss.file: 'a\\x00.py' is not a path: embedded null byte", BESIDE, CHECK_PATH),
    ),
    "syntax": (
        {"my_loss.py": "def loss():\n    return 1 +\n"},
        {"train": "loss: {file: my_loss.py}"},
        (
            "job.yaml:5:43: train.loss.file: my_loss.py:2:15: invalid syntax\n    return 1 +",
            "code for Python {python}",
            "fix this line, or the one before it",
        ),
    ),
    "null bytes": (
        {"my_loss.py": "x = '\0'"},
        {"train": "loss: {file: my_loss.py}"},
        (
            "job.yaml:5:43: train.loss.file: my_loss.py cannot be read: it holds null bytes",
            "a text file with Python code",
            "save it again as text",
        ),
    ),
    "name of the factory": (
        {},
        {"train": "loss: {file: my_loss.py, factory: los}"},
        (
            "job.yaml:5:61: train.loss.factory: my_loss.py has no function or class 'los' at its top level",
            "one of functional, loss",
            'did you mean "loss"?',
        ),
    ),
    "nothing to call": (
        {"my_loss.py": "class _A:\n    pass\n"},
        {"train": "loss: {file: my_loss.py}"},
        (
            "job.yaml:5:36: train.loss.factory: my_loss.py has no function or class 'loss' at its top level",
            "a function or class at its top level",
            "write `def loss(...):`, or name another",
        ),
    ),
    "inside another function": (
        {"my_loss.py": "def a():\n    def loss():\n        pass\n"},
        {"train": "loss: {file: my_loss.py}"},
        (
            "job.yaml:5:36: train.loss.factory: my_loss.py has no function or class 'loss' at its top level",
            "one of a",
            "write `def loss(...):`, or name another",
        ),
    ),
    "the loss itself": (
        {"my_loss.py": "def loss(outputs, targets):\n    return 0\n"},
        {"train": "loss: {file: my_loss.py}"},
        (
            "job.yaml:5:36: train.loss.arguments: loss() in my_loss.py needs outputs, targets",
            "a value for each argument without a default",
            "add `arguments: {outputs: ...}`, or give it a default",
        ),
    ),
    "unknown argument": (
        {},
        {"model": "arguments: {widht: 3}"},
        (
            "job.yaml:4:40: model.arguments.widht: build() in my_model.py has no such argument",
            "arguments of build(): outputs, width",
            'did you mean "width"?',
        ),
    ),
    "no arguments at all": (
        {},
        {"train": "loss: {file: my_loss.py, arguments: {gamma: 2}}"},
        (
            "job.yaml:5:73: train.loss.arguments.gamma: loss() in my_loss.py has no such argument",
            "loss() has none",
            "remove it",
        ),
    ),
    "a class that needs more": (
        {},
        {"model": "factory: Net"},
        (
            "job.yaml:4:1: model.arguments: Net() in my_model.py needs width",
            f"a value for each argument without a default; {OFFERED}",
            "add `arguments: {width: ...}`, or give it a default",
        ),
    ),
    "a keyword that is needed": (
        {"my_model.py": "def build(*, depth):\n    pass\n"},
        {},
        (
            "job.yaml:4:1: model.arguments: build() in my_model.py needs depth",
            f"a value for each argument without a default; {OFFERED}",
            "add `arguments: {depth: ...}`, or give it a default",
        ),
    ),
    "by position only": (
        {"my_model.py": "def build(width, /, depth=1):\n    pass\n"},
        {},
        (
            "job.yaml:4:1: model.factory: build() has positional-only parameters: width",
            "parameters that can be passed by name",
            "remove the `/` from its signature",
        ),
    ),
    "reader": (
        {},
        {"data": "reader: read"},
        (
            "job.yaml:3:26: data.reader: my_data.py has no function or class 'read' at its top level",
            "one of torch, points, load",
            'did you mean "load"?',
        ),
    ),
    "class weights beside a loss": (
        {},
        {"train": "loss: {file: my_loss.py}, class_weights: balanced"},
        (
            "job.yaml:5:62: train.class_weights: is 'balanced'",
            "a built-in loss",
            "remove it, and weight the classes inside your own loss",
        ),
    ),
    "a loss without file": (
        {},
        {"train": "loss: own"},
        (
            "job.yaml:5:36: train.loss.file: is missing",
            "a required key: Python file next to the job file",
            "add `file:`",
        ),
    ),
}


@pytest.mark.parametrize(("files", "parts", "message"), BAD.values(), ids=BAD)
def test_a_bad_file_and_its_message(
    files: dict[str, str], parts: dict[str, str], message: tuple[str, str, str], tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as raised:
        job(tmp_path, files, **parts)
    assert raised.value.exit_code == 2
    description, possible, action = (
        text.format(python=sys.version.split()[0]) if "{python}" in text else text for text in message
    )
    assert (
        str(raised.value).replace(f"{tmp_path}/", "") == f"{description}\n  possible: {possible}\n  do:       {action}"
    )


def test_every_user_file_is_checked_in_the_order_of_the_job(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as raised:
        job(tmp_path, {"my_data.py": "def load(n):\n    pass\n", "my_model.py": "def (\n"}, train="loss: {file: x.py}")
    assert [problem.key for problem in raised.value.problems] == ["data.arguments", "model.file", "train.loss.file"]


def test_a_link_that_leads_out_of_the_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "job", tmp_path / "outside.py"
    inside.mkdir()
    outside.write_text(LOSS)
    path = write_job(inside, train="loss: {file: link.py}")
    (inside / "link.py").symlink_to(outside)
    with pytest.raises(SpecError, match=r"'link\.py' is a link to .*/outside\.py"):
        job_spec.load(path)
    (inside / "link.py").unlink()
    (inside / "link.py").symlink_to(inside / "my_loss.py")
    assert job_spec.load(path).name == "tiny"


@pytest.mark.parametrize(
    "text",
    [
        "from elsewhere import build",
        "from elsewhere import *",
        "build = make(3)",
        "if True:\n    def build(outputs):\n        pass",
        "try:\n    import fast\nexcept ImportError:\n    def build():\n        pass",
        "def build(**settings):\n    pass",
        "@cache\ndef build(what):\n    pass",
        "class build(Base):\n    pass",
        "class build:\n    def __init__(self, outputs, *, classes):\n        pass",
        "x = '\\d'\ndef build():\n    pass",
    ],
)
def test_what_cannot_be_known_without_running_is_no_mistake(text: str, tmp_path: Path) -> None:
    assert job(tmp_path, {"my_model.py": text}).name == "tiny"


def test_nothing_is_run_and_torch_is_not_loaded(tmp_path: Path) -> None:
    bomb = "open('exploded', 'w')\n"
    path = write_job(tmp_path, {"my_model.py": bomb + MODEL, "my_data.py": bomb + "def load():\n    pass\n"})
    code = (
        "import sys; from drivetrain.cli.main import main; code = main(['validate', sys.argv[1]]); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": IMPORTS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{path}: valid (tiny, custom)\n"), done.stderr
    assert not (tmp_path / "exploded").exists()


def test_a_job_file_is_not_offered_as_data(tmp_path: Path) -> None:
    (tmp_path / "machines.yaml").write_text("")
    assert suggest_nearest_path((tmp_path,), "machines.csv") == ""
    (tmp_path / "machine.csv").write_text("")
    assert suggest_nearest_path((tmp_path,), "machines.csv") == 'did you mean "machine.csv"?'


def test_where_paths_start_is_part_of_the_advice(tmp_path: Path) -> None:
    """It said to check the spelling of a name that was right."""
    explanation = find_misplacement(tmp_path, "my_own_loss.py")
    assert explanation
    assert explanation[2] == CHECK_PATH
