"""What each signal does to a trainer: a stop with a saved checkpoint, nothing, a pause, or the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from drivetrain.system import signals
from drivetrain.system.signals import Interrupted, Signals
from tests.paths import ROOT

CODE = """
import sys
from drivetrain.errors import Stopped
from drivetrain.system.signals import Signals, raise_stopped

try:
    with raise_stopped():
        signals = Signals()
        with signals.protect_section():
            print("ready", flush=True)
            sys.stdin.readline()
        signals.check()
except Stopped as stop:
    print(stop.given)
    sys.exit(75)
"""
"""A trainer that saves while signals arrive."""
STOPS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
NOTHING = ("SIGPIPE", "SIGXFSZ", "SIGCHLD", "SIGCONT", "SIGWINCH", "SIGURG")
PAUSES = ("SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU")


def run_trainer(numbers: list[int], *, ignored: tuple[int, ...] = ()) -> tuple[int, str]:
    """The exit code of a trainer that gets these signals, and what it prints."""

    def prepare() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)

    with subprocess.Popen(
        [sys.executable, "-c", CODE],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=prepare,
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        for number in numbers:
            process.send_signal(number)
        if numbers == [signal.SIGSTOP]:
            assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        if numbers[0] in [signal.Signals[name] for name in PAUSES]:
            process.send_signal(signal.SIGCONT)
        said = process.communicate("\n", timeout=60)[0]
        return process.returncode, said


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other signals")
@pytest.mark.parametrize("name", sorted(signal.Signals.__members__))
def test_every_signal(name: str) -> None:
    code, said = run_trainer([signal.Signals[name]])
    if name in STOPS:
        assert (code, said.split(" (")[0].strip()) == (75, f"stopped by {name}")
    else:
        harmless = signal.Signals[name] in [signal.Signals[one] for one in (*NOTHING, *PAUSES)]
        assert code == (0 if harmless else -signal.Signals[name])


def test_what_the_starter_ignores_stays_ignored() -> None:
    """As under `nohup`, or in the background of a shell."""
    assert run_trainer(list(signals.HANDLED_SIGNALS), ignored=signals.HANDLED_SIGNALS) == (0, "")


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Signals, list[int]]]:
    """The signals of a trainer whose clock goes on by a second with each, and the codes with which it would end at once."""
    before = {number: signal.getsignal(number) for number in signals.HANDLED_SIGNALS}
    ends: list[int] = []
    clock = iter(range(1, 99))
    monkeypatch.setattr(Signals, "_end_at_once", lambda self, number: ends.append(number))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    yield Signals(), ends
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("names", "ends"),
    [
        (["SIGTERM", "SIGTERM"], ["SIGTERM"]),
        (["SIGTERM", "SIGINT"], ["SIGINT"]),
        (["SIGHUP", "SIGHUP", "SIGTERM"], []),
        (["SIGUSR1", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGXCPU", "SIGTERM"], []),
        (["SIGUSR2", "SIGINT", "SIGTERM"], ["SIGTERM"]),
        (["SIGTERM", "SIGHUP", "SIGUSR1"], []),
    ],
    ids="-".join,
)
def test_only_a_second_wish_ends_at_once(trainer: tuple[Signals, list[int]], names: list[str], ends: list[str]) -> None:
    """A terminal that closes and a scheduler at its limit send several signals."""
    ours, codes = trainer
    with pytest.raises(Interrupted, match=f"stopped by {names[0]}"):
        signal.raise_signal(signal.Signals[names[0]])
    for name in names[1:]:
        signal.raise_signal(signal.Signals[name])
    assert codes == [signal.Signals[name] for name in ends]
    with pytest.raises(Interrupted):
        ours.check()


def test_the_same_signal_to_us_and_our_starter_is_one(
    trainer: tuple[Signals, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who ends a session or a service sends it to all of its processes, and the supervisor forwards its own."""
    monkeypatch.setattr(time, "monotonic", lambda: 1.0)
    with pytest.raises(Interrupted):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    assert trainer[1] == []
