"""Explains exit code 137, after which a process cannot explain itself."""

KILLED = 137
"""128 plus the number of SIGKILL."""


def explain_kill(what: str) -> str:
    """The message, in three parts, about a process or container that was killed, but not at its memory limit."""
    return (
        f"{what} was killed (exit {KILLED}, SIGKILL), but not because of its memory limit\n"
        "  possible: `kill -9`, `docker kill`, `docker stop` with too short a time, or a host that ran out of memory: "
        "`dmesg | grep -i kill` names what its kernel killed\n"
        "  do:       run the same command again; it resumes from the last checkpoint"
    )
