"""How this machine reaches other hosts: its proxies and its certificates."""

from __future__ import annotations

import ssl
from urllib.request import getproxies


def proxies() -> dict[str, str]:
    """The proxy of each scheme; one for all schemes counts where none is named."""
    found = getproxies()
    every = found.get("all", "")
    if every.startswith(("http://", "https://")):
        found = {"http": every, "https": every, **found}
    return found


def certificates() -> ssl.SSLContext:
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
