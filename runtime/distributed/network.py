"""The network between the nodes of a run: which interface leads to the meeting place, and a socket to listen on."""

from __future__ import annotations

import ipaddress
import socket
import sys
import time
from collections.abc import Callable

import psutil

from runtime.distributed.placement import Meet
from runtime.errors import PeerError, SpecError

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
KNOWN_AFTER = 60.0
"""Seconds until the name of the meeting host must be known: that of a pod is not, in its first moments."""


def listening(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """A socket that listens on one address only.

    Raises:
        PeerError: if the address or the port cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise PeerError(
            f"the leader cannot listen on {host}:{port}: {error.strerror or error}",
            "a port that no other process uses, on an address of this machine",
            "end the other run, or give another port: --meet HOST:PORT, or MASTER_PORT",
        ) from None


def own_address(meet: Meet, *, leads: bool, resolve: Callable[[str, int], list[str]] | None = None) -> str:
    """The address of this node in the network that leads to the meeting place.

    Debian writes the name of a host as 127.0.1.1 into its /etc/hosts; the leader then takes its only other address.

    Raises:
        PeerError: if the host stays unknown, or no network leads to it.
        SpecError: if its name stands for this node itself, or the leader has several addresses to choose from.
    """
    host, port = meet
    found = (resolve or _resolved)(host, port)
    own = addresses()
    if leads:
        here = next((each for each in found if each in own), None)
        if here and not ipaddress.ip_address(here).is_loopback:
            return here
        return _only(host, found, own)
    target = next((each for each in found if not ipaddress.ip_address(each).is_loopback), None)
    if target is None:
        raise SpecError(
            f"the meeting host {host} is {found[0]} on this node, which is the node itself",
            "an address of node 0 that this node can reach",
            "give the address of node 0 in place of its name: --meet ADDRESS:PORT, or MASTER_ADDR",
        )
    return _source(target, port)


def interface(address: str) -> str:
    """The name of the network interface with this address."""
    return addresses().get(address, LOOPBACK)


def addresses() -> dict[str, str]:
    """The interface of each address of this machine."""
    return {
        each.address.partition("%")[0]: name
        for name, rows in psutil.net_if_addrs().items()
        for each in rows
        if each.family in (socket.AF_INET, socket.AF_INET6)
    }


def _resolved(host: str, port: int) -> list[str]:
    end = time.monotonic() + KNOWN_AFTER
    while True:
        try:
            rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            if time.monotonic() < end:
                time.sleep(1)
                continue
            raise PeerError(
                f"the meeting host {host} is not known on this node: {error.strerror or error}",
                "a name that all nodes can look up, or an address",
                "give the address of node 0: --meet ADDRESS:PORT, or MASTER_ADDR",
            ) from None
        return list(dict.fromkeys(str(row[4][0]) for row in rows))


def _source(target: str, port: int) -> str:
    """The own address from which packets to a target are sent; nothing is sent."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, port))
        except OSError as error:
            raise PeerError(
                f"no network leads from this node to {target}: {error.strerror or error}",
                "an address of node 0 that this node can reach",
                "check the network between the nodes, and the address in --meet or MASTER_ADDR",
            ) from None
        return str(probe.getsockname()[0])


def _only(host: str, found: list[str], own: dict[str, str]) -> str:
    """The leader's address if the name does not tell it: that of the default route, or the only one."""
    known = [a for a in own if not (ipaddress.ip_address(a).is_loopback or ipaddress.ip_address(a).is_link_local)]
    known = [address for address in known if ":" not in address] or known
    if len(known) == 1:
        return known[0]
    raise SpecError(
        f"the meeting host {host} is {', '.join(found)} here, which says not which network leads to the other nodes",
        f"one of this node's addresses: {', '.join(known) or 'there is none'}",
        "give the one that all nodes can reach: --meet ADDRESS:PORT, or MASTER_ADDR",
    )
