"""Parses a command line; a mistyped command or option is refused with the nearest one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from drivetrain.cli.arguments import list_commands, list_options, make_parser
from drivetrain.errors import SpecError, nearest
from drivetrain.system.installation import CHECKOUT, format_stop_command

_EXAMPLE = "  drivetrain train jobs/digits.yaml   train an example: handwritten digits\n" if CHECKOUT else ""
FIRST_STEPS = f"""\
usage: drivetrain COMMAND ...

first steps:
{_EXAMPLE}  drivetrain init DATA                draft a job file from your data: images, a table, an .npz
  drivetrain train JOB                train it, or resume its unfinished run
  drivetrain doctor                   check this machine for problems

`drivetrain --help` lists all commands.
"""
OTHER_WORDS = {
    "extend": "`drivetrain train JOB --extend RUN` continues a finished run",
    "resume": "`drivetrain train JOB` resumes the unfinished run of the job",
    "continue": "`drivetrain train JOB` resumes the unfinished run of the job",
    "run": "`drivetrain train JOB` trains it",
    "fit": "`drivetrain train JOB` trains it",
    "test": "`drivetrain evaluate RUN --data PATH` computes the metrics on labeled data",
    "infer": "`drivetrain predict RUN INPUT` predicts new samples",
    "version": "`drivetrain --version` prints it",
    "stop": f"`{format_stop_command('CONTAINER')}` ends a training after a checkpoint; so does Ctrl-C where it runs",
}
"""Words that people type, and the command for each."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed command line; without a command it prints the first steps and ends with exit code 2.

    Args:
        arguments: the words after the program's name; this process's own if None.

    Raises:
        SpecError: for an unknown command or option, and for arguments that are missing or invalid.
        SystemExit: after `--help`, and without a command.
    """
    command_words = list(sys.argv[1:] if arguments is None else arguments)
    top = make_parser()
    commands = list_commands(top)
    if not command_words:
        print(FIRST_STEPS, end="", file=sys.stderr)
        raise SystemExit(2)
    names = list(dict.fromkeys(name.partition(" ")[0] for name in commands))
    if not command_words[0].startswith("-") and command_words[0] not in names:
        raise SpecError(
            f"{command_words[0]}: there is no such command", ", ".join(names), _suggest_command(command_words[0], names)
        )
    parsed, unknown = top.parse_known_args(command_words)
    if unknown:
        raise _make_unexpected_argument_error(parsed.command, unknown, list_options(commands[parsed.command]))
    return parsed


def _suggest_command(argument: str, commands: Sequence[str]) -> str:
    """Advise about an unknown command; people type a job file, too."""
    if argument.endswith((".yaml", ".yml")):
        return f"to train it: `drivetrain train {argument}`"
    return (
        OTHER_WORDS.get(argument.lower()) or nearest(argument, commands) or "`drivetrain --help` explains all commands"
    )


def _make_unexpected_argument_error(command: str, unknown: Sequence[str], options: Sequence[str]) -> SpecError:
    option = next((argument for argument in unknown if argument.startswith("-")), None)
    problem = f"{unknown[0]}: `drivetrain {command}` takes no such argument"
    if option is None and "=" in unknown[0] and "--set" in options:
        return SpecError(problem, "one KEY=VALUE after each --set", f"write --set {unknown[0]}")
    if option is None:
        action = f"remove it; `drivetrain {command} --help` shows all arguments"
        return SpecError(problem, f"options: {', '.join(options)}", action)
    name, _, value = option.partition("=")
    value = value or next(
        (argument for argument in unknown[unknown.index(option) + 1 :] if not argument.startswith("-")), "VALUE"
    )
    return SpecError(
        f"{name}: `drivetrain {command}` has no such option",
        ", ".join(options),
        (_suggest_key(name, value) if "--set" in options else "")
        or nearest(name, options)
        or f"`drivetrain {command} --help` explains them",
    )


def _suggest_key(option: str, value: str) -> str:
    """Advise about an option of other trainers that is a key of the job file here; empty if it is not."""
    from drivetrain import optimizations
    from drivetrain.job import Job

    key = option.lstrip("-").replace("-", "_")
    models = {section: Job.model_fields[section].annotation for section in ("train", "limits", "checkpoint")}
    keys_of = {section: set(getattr(model, "model_fields", ())) for section, model in models.items()}
    keys_of |= {"train.optimizer": {"lr"}, "optimize": set(optimizations.off_values())}
    key = {"learning_rate": "lr"}.get(key, key)
    section = next((section for section, keys in keys_of.items() if key in keys), None)
    return f"it is a key of the job: --set {section}.{key}={value}" if section else ""
