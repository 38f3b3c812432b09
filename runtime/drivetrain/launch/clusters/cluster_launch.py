"""`drivetrain launch JOB --on ENGINE`: writes one file for the engine, and prints or runs the command that submits it.

In a template file {{name}} stands for a value. How that is written depends on the line: in a comment as it is; alone on a
line as the lines of a text, or as YAML; after `key: ` as YAML; elsewhere as words of the shell, quoted. A line whose value
is None is left out, and so is a line that begins with ##, which is for those who fill the file by hand.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from drivetrain.errors import DeviceError, SpecError
from drivetrain.job.hub_address import is_on_hub
from drivetrain.launch import mounts
from drivetrain.launch.clusters import site
from drivetrain.launch.clusters.cluster_job import resolve
from drivetrain.launch.clusters.engines import ENGINES
from drivetrain.launch.container import LaunchRequest
from drivetrain.system.console import say
from drivetrain.system.files import write_text

FOLDER = Path(__file__).parents[1] / "templates"
_NAME = re.compile(r"\{\{(\w+)\}\}")
_LINE = re.compile(r"(?P<indent> *)((?P<key>[\w.-]+): )?\{\{(?P<name>\w+)\}\}")


def launch(request: LaunchRequest) -> int:
    """Write the file, and submit it if asked; returns the exit code. Raises DrivetrainError if job or site is invalid."""
    work = resolve(request)
    texts = {"the working folder": Path.cwd(), "the job file": work.spec, "this Python": sys.executable}
    texts |= {f"an option of train, {number}": word for number, word in enumerate(work.options, start=1)}
    mounts.check_one_line(texts | {"--output": request.output or ""})
    file = ENGINES[request.engine](work, *site.load(request.site, request.engine))
    path = (request.output or Path(f"{work.job.name}{file.suffix}")).absolute()
    for _, text in work.job.data_paths():
        if is_on_hub(text):
            cache = "a cache of the hub in a shared folder (HF_HOME), which `drivetrain fetch` fills"
            say(f"data {text}: the nodes need a network, or {cache}")
    count = f"{work.least} to {work.nodes}" if work.least < work.nodes else f"{work.nodes}"
    node_count = f"{count} node{'s' * (work.nodes > 1)}"
    values = {"job_name": work.job.name, "node_count": node_count, "nodes": work.nodes, **file.values}
    kind, plural = ("GPU", "GPUs") if work.gpus else ("process", "processes")
    size = f"{node_count}, {work.per_node} {plural if work.per_node > 1 else kind} on each"
    say(f"{path} {_write(path, fill(file.template, values))}: {size}")
    command = [*file.submit, str(path)]
    if request.submit:
        _run(command, path)
    say(f"progress: {file.progress}" if request.submit else f"to submit it: {shlex.join(command)}")
    return 0


def _write(path: Path, text: str) -> str:
    """Write the file, and say what became of one that was there; somebody may have edited it."""
    if not path.exists():
        write_text(path, text)
        return "written"
    if path.read_text(encoding="utf-8", errors="replace") == text:
        return "is unchanged"
    before = path.with_name(f"{path.name}.before")
    path.replace(before)
    write_text(path, text)
    return f"written; the earlier one is now {before.name}"


def _run(command: list[str], path: Path) -> None:
    """Run the engine's own tool; raises DeviceError if it is missing, or refuses."""
    if shutil.which(command[0]) is None:
        possible, action = "a machine from which jobs are submitted", f"run there: {shlex.join(command)}"
        raise DeviceError(f"--submit: there is no {command[0]} here", possible, action)
    if code := subprocess.run(command, check=False).returncode:
        action = f"correct the site file or {path.name}, then run: {shlex.join(command)}"
        raise DeviceError(f"{command[0]} ended with exit code {code}", "see its message above", action)


class _PlainDumper(yaml.SafeDumper):
    """Writes several lines as they are, for instance a job file; quotes what an old reader takes for a boolean."""


_PlainDumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def fill(name: str, values: Mapping[str, object]) -> str:
    """The text of a template with its values.

    Raises:
        SpecError: if a name in the template has no value, a value is not used, or one in a comment is not on one line.
    """
    lines = [line for line in (FOLDER / name).read_text(encoding="utf-8").splitlines() if not line.startswith("##")]
    if mismatches := set(_NAME.findall("\n".join(lines))) ^ values.keys():
        raise SpecError(
            f"{FOLDER / name}: {', '.join(sorted(mismatches))}",
            f"each of these once or more, and no others: {', '.join(values)}",
            "correct the template, or install drivetrain again",
        )
    return "".join(f"{text}\n" for line in lines for text in _fill_line(line, values))


def _fill_line(line: str, values: Mapping[str, object]) -> Iterator[str]:
    """Yield the lines that a line of a template becomes."""
    names = _NAME.findall(line)
    if any(values[name] is None for name in names):
        return
    if line.lstrip().startswith("# "):
        comment = _NAME.sub(lambda match: str(values[match[1]]), line)
        mounts.check_one_line({"a comment": comment})
        yield comment
    elif match := _LINE.fullmatch(line):
        value = values[match["name"]]
        if match["key"]:
            text = _dump({match["key"]: value})
        else:
            text = value if isinstance(value, str) else _dump(value) if value else ""
        rows = text.removesuffix("\n").split("\n") if text else []
        yield from (match["indent"] + row if row else "" for row in rows)
    else:
        yield _NAME.sub(lambda match: _quote(values[match[1]]), line)


def _dump(value: object) -> str:
    return yaml.dump(value, Dumper=_PlainDumper, sort_keys=False, width=100)


def _quote(value: object) -> str:
    """A value as words of the shell."""
    return shlex.join(value) if isinstance(value, list) else shlex.quote(str(value))
