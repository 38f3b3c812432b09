"""Compares addresses of the web."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str | None) -> bool:
    """Return whether a host name or address is this machine itself."""
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def parse_origin(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port of a server's address; raises ValueError if it is no address."""
    address = urlsplit(url)
    return address.scheme, address.hostname or "", address.port or {"http": 80, "https": 443}.get(address.scheme)
