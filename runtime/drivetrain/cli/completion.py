"""Shell completion, written from the parser: commands, options, values to choose from, runs by name, files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from drivetrain.cli.arguments import list_commands, list_options
from drivetrain.supervisor import named_run

INSTALL = {
    "bash": "drivetrain completion bash > ~/.local/share/bash-completion/completions/drivetrain",
    "zsh": "drivetrain completion zsh > ~/.drivetrain.zsh, and after compinit in ~/.zshrc: source ~/.drivetrain.zsh",
}
# Bash 3.2 of macOS has neither mapfile nor compopt.
_BASH = """\
_drivetrain() {{
    local IFS=$'\\n' word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} command=${{COMP_WORDS[1]}}
    local options='' values='' kind=''
    COMPREPLY=()
    if [[ $COMP_CWORD -eq 1 ]]; then
        COMPREPLY=($(compgen -W '{commands}' -- "$word"))
        return
    fi
    case $command in
{options}
        *) return ;;
    esac
    case "$command $before" in
{values}
    esac
    if [[ -n $values ]]; then
        COMPREPLY=($(compgen -W "$values" -- "$word"))
        return
    fi
    case $kind in
        none) return ;;
        file) COMPREPLY=($(compgen -f -- "$word")) && return ;;
        run) COMPREPLY=($(cd {folder} 2>/dev/null && compgen -d -- "$word")) && return ;;
    esac
    case $word in
        -*) COMPREPLY=($(compgen -W "$options" -- "$word")) && return ;;
    esac
    case $command in
{runs}) COMPREPLY=($(cd {folder} 2>/dev/null && compgen -d -- "$word")) ;;
{places}
    esac
    [[ ${{#COMPREPLY[@]}} -gt 0 ]] || COMPREPLY=($(compgen -f -- "$word"))
}}
"""
_COMPLETE = "complete -o filenames -F _drivetrain drivetrain\n"


def make_script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The completion of a shell."""
    commands = list_commands(parser)
    positionals = {
        name: [one for one in command._actions if not one.option_strings] for name, command in commands.items()
    }
    takes_runs = [name for name, actions in positionals.items() if any(map(_is_run, actions))]
    body = _BASH.format(
        commands="\n".join((*commands, "--help", "--version")),
        options="\n".join(_format_case(name, "options", list_options(command)) for name, command in commands.items()),
        values="\n".join(line for name, command in commands.items() for line in _list_values(name, command)),
        runs="        " + " | ".join(takes_runs),
        folder=named_run.RUNS,
        places="\n".join(line for name, command in commands.items() for line in _list_path_options(name, command)),
    )
    head = f"# Completion of drivetrain. To install: {INSTALL[shell]}\n"
    if shell == "bash":
        return head + body + _COMPLETE
    # Zsh runs completion functions of bash.
    return f"{head}autoload -U +X bashcompinit && bashcompinit\n{body}{_COMPLETE}"


def _is_run(action: argparse.Action) -> bool:
    return action.type is named_run.parse


def _list_values(name: str, command: argparse.ArgumentParser) -> Iterator[str]:
    """What follows an option: one of its values, a file, or something that nobody can complete."""
    for action in command._actions:
        if not action.option_strings or action.nargs == 0:
            continue
        pattern = " | ".join(f"'{name} {word}'" for word in action.option_strings)
        if action.choices:
            yield _format_case(pattern, "values", [str(value) for value in action.choices])
        else:
            kind = "run" if _is_run(action) else "file" if action.type is Path else "none"
            yield _format_case(pattern, "kind", [kind])


def _list_path_options(name: str, command: argparse.ArgumentParser) -> Iterator[str]:
    """Arguments with values to choose from; only first ones have them."""
    first = next((action for action in command._actions if not action.option_strings), None)
    if first and first.choices:
        choices = "\\n".join(str(value) for value in first.choices)
        yield f"        {name}) [[ $COMP_CWORD -gt 2 ]] || COMPREPLY=($(compgen -W $'{choices}' -- \"$word\")) ;;"


def _format_case(pattern: str, variable: str, candidates: list[str]) -> str:
    separated = "\\n".join(candidates)
    return f"        {pattern}) {variable}=$'{separated}' ;;"
