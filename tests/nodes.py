"""Machines made of network namespaces, joined by a bridge: as far as sockets and names go, several computers."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.paths import ROOT

MISSING = "" if os.geteuid() == 0 and shutil.which("ip") and shutil.which("unshare") else "needs root and iproute2"
"""Why there can be no namespaces here."""
HOSTS = Path("/etc/netns")
"""Where `ip netns exec` finds the files that replace those of /etc."""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Node:
    """One machine: a network namespace with one interface, and a host name of its own."""

    def __init__(self, space: str, name: str, address: str) -> None:
        self.space, self.name, self.address = space, name, address
        self.started: list[subprocess.Popen[bytes]] = []

    def cut(self) -> None:
        """Pull its cable."""
        _ip("-n", self.space, "link", "set", "eth0", "down")

    def lose(self, share: float) -> None:
        """Lose this share of what it sends and of what it is sent; many kernels lack tc's netem, which could, too."""
        for chain in ("INPUT", "OUTPUT"):
            drop_rule = ["-m", "statistic", "--mode", "random", "--probability", str(share), "-j", "DROP"]
            command = ["ip", "netns", "exec", self.space, "iptables", "-A", chain, *drop_rule]
            subprocess.run(command, check=True, capture_output=True, text=True)

    def command(self, arguments: Sequence[str]) -> list[str]:
        """A command line that runs another one on this machine."""
        inside = ["sh", "-c", f'hostname {self.name}; exec "$@"', "sh", *arguments]
        return ["ip", "netns", "exec", self.space, "unshare", "--uts", *inside]

    def start(
        self, arguments: Sequence[str], log: Path, variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command on this machine; it replaces this process's environment variables by those given."""
        with log.open("wb") as file:
            process = subprocess.Popen(
                self.command(arguments),
                cwd=ROOT,
                env={**os.environ, **(variables or {})},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self.started.append(process)
        return process


@contextlib.contextmanager
def network(count: int, *, names: str = "") -> Iterator[list[Node]]:
    """So many machines on one network; they and it are gone after the block.

    Args:
        count: the number of machines.
        names: how they find each other, with {} for the number; by address alone if empty.
    """
    tag = f"dt{secrets.token_hex(2)}"
    spaces: list[str] = []
    nodes: list[Node] = []
    try:
        # In a namespace of its own: Docker's firewall would drop what passes a bridge of the host.
        _ip("netns", "add", tag)
        spaces.append(tag)
        _ip("-n", tag, "link", "add", "switch", "type", "bridge")
        _ip("-n", tag, "link", "set", "switch", "up")
        for number in range(count):
            space, address = f"{tag}n{number}", f"10.77.0.{number + 1}"
            _ip("netns", "add", space)
            spaces.append(space)
            if names:
                hosts = HOSTS / space / "hosts"
                hosts.parent.mkdir(parents=True)
                hosts.write_text(
                    "127.0.0.1 localhost\n" + "".join(f"10.77.0.{i + 1} {names.format(i)}\n" for i in range(count))
                )
            _ip("-n", tag, "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("-n", tag, "link", "set", f"port{number}", "master", "switch", "up")
            _ip("-n", space, "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", space, "link", "set", device, "up")
            nodes.append(Node(space, f"node{number}", address))
        yield nodes
    finally:
        for process in (process for node in nodes for process in node.started):
            process.kill()
            process.wait()
        for space in spaces:
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)
            shutil.rmtree(HOSTS / space, ignore_errors=True)
