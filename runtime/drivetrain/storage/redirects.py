"""Where the server of an http:// file leads to: never from a file on the web to what only this machine can reach.

The client follows redirects by itself, and cannot be told which. So they are followed here once before. This does not stop a
server that answers the client differently; https:// does, since the client then follows no redirect without encryption.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import urllib.request
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from drivetrain.storage.store_errors import RemoteError, Trouble

_MAX_REDIRECTS = 10
"""How many redirects the client follows."""
_METADATA = ("fd00:ec2::254", "100.100.100.200")
"""Services that give a machine its credentials, beside those at link-local addresses."""
_REQUEST_TIMEOUT = 10.0
"""Timeout of a request in seconds."""


def check(url: str) -> None:
    """Follow the redirects of a file without reading it. A server that does not answer is left to the client.

    Raises:
        RemoteError: if one leads to another host, at an address that is not public; or if the file itself is at an address
            where clouds give credentials.
    """
    first = urlsplit(url)
    if any(address.is_link_local or str(address) in _METADATA for address in _addresses(first)):
        raise RemoteError(
            Trouble.REFUSED,
            f"{first.scheme}://{first.netloc}{first.path} is at an address where a cloud gives credentials to its machines",
            "a server with data",
            "correct the address",
        )
    if "http" in urllib.request.getproxies() and not urllib.request.proxy_bypass(first.netloc):
        return  # the proxy decides what it reaches
    for _ in range(_MAX_REDIRECTS):
        try:
            target = _redirect(url)
        except (OSError, http.client.HTTPException, ValueError):
            return
        if target is None:
            return
        url = urljoin(url, target)
        parts = urlsplit(url)
        if parts.netloc != first.netloc and not _is_public(parts):
            raise RemoteError(
                Trouble.REFUSED,
                f"{first.scheme}://{first.netloc}{first.path} redirects to {parts.scheme}://{parts.netloc}, which is no "
                "public address",
                "a file where its address says that it is",
                "if you trust that server, write its address into the job",
            )


def _redirect(url: str) -> str | None:
    """Where a server sends on; None if nowhere."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_REQUEST_TIMEOUT)
    try:
        target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", target, headers={"Range": "bytes=0-0"})
        reply = connection.getresponse()
        return reply.getheader("Location") if 300 <= reply.status < 400 else None
    finally:
        connection.close()


def _is_public(parts: SplitResult) -> bool:
    """Whether all addresses of a host are on the internet."""
    addresses = _addresses(parts)
    return bool(addresses) and all(address.is_global and not address.is_multicast for address in addresses)


def _addresses(parts: SplitResult) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The addresses of a host; empty if it has none."""
    try:
        rows = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
        addresses = [ipaddress.ip_address(str(row[4][0]).partition("%")[0]) for row in rows]
    except (OSError, ValueError):
        return []
    return [getattr(address, "ipv4_mapped", None) or address for address in addresses]
