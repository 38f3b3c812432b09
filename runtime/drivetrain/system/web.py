"""How this machine reaches other hosts: its proxies and its certificates."""

from __future__ import annotations

import ipaddress
import ssl
from urllib import request
from urllib.parse import urlsplit
from urllib.request import BaseHandler, HTTPSHandler, OpenerDirector, ProxyHandler, getproxies


def is_loopback(host: str | None) -> bool:
    """Whether a host name or address is this machine itself."""
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def parse_origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port of an address: where two agree, the same server answers.

    Raises:
        ValueError: if it is no address.
    """
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def build_opener(url: str, *handlers: BaseHandler) -> OpenerDirector:
    """Opens an address through the proxies of this machine, with its certificates."""
    https = HTTPSHandler(context=load_certificates())
    return request.build_opener(ProxyHandler(_find_proxies(url)), https, *handlers)


def _find_proxies(url: str) -> dict[str, str]:
    """The proxy of each scheme on the way to an address; one for all schemes counts where none is named.

    None is on the way to this machine itself: it would read what is not encrypted because it stays here.
    """
    if is_loopback(urlsplit(url).hostname):
        return {}
    by_scheme = getproxies()
    every = by_scheme.get("all", "")
    if every.startswith(("http://", "https://")):
        by_scheme = {"http": every, "https": every, **by_scheme}
    return by_scheme


def load_certificates() -> ssl.SSLContext:
    """The certificates of SSL_CERT_FILE or of this system; some builds of Python know none."""
    paths = ssl.get_default_verify_paths()
    if not paths.cafile and not paths.capath:
        try:
            import truststore
        except ImportError:
            pass
        else:
            return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return ssl.create_default_context()
