"""Requests to an MLflow server: plain REST, version 2.0 of its API, and what its refusals mean."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import HTTPRedirectHandler, Request

from drivetrain.system import web
from drivetrain.system.files import parse_json
from drivetrain.system.secrets import mask_secrets
from drivetrain.system.version import VERSION
from drivetrain.tracking.tracker import TrackerError

URI_NAME = "MLFLOW_TRACKING_URI"
"""Names the user's own server; a job may name another, which gets no credentials."""
VARIABLES = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
"""The variables of MLflow's own client."""
REQUEST_TIMEOUT = 10.0
"""Seconds to wait for an answer."""
MAX_ANSWER_BYTES = 8 << 20
"""Bytes of an answer."""
_PASSING_CODES = (408, 425, 429)


class MlflowServer:
    """The way to one server.

    Args:
        address: such as http://127.0.0.1:5000.
        identity: the file that keeps which run on the server is ours, for messages.
        environ: where user and password, or the token, come from.
    """

    def __init__(self, address: str, identity: Path, environ: Mapping[str, str] = os.environ) -> None:
        self.address = address.rstrip("/")
        self.identity = identity
        self.authorization = _build_authorization(environ)
        self.withheld, self.hint = _explain_withheld(self.address, environ) if self.authorization else ("", "")
        if self.withheld:
            self.authorization = ""
        self.opener = web.build_opener(self.address, _NoRedirects())

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a POST request.

        Raises:
            TrackerError: as all methods.
        """
        return self.request("POST", path, json.dumps(body).encode())

    def request(self, method: str, path: str, data: bytes | None = None) -> dict[str, Any]:
        """The JSON object that answers a request."""
        headers = {"Content-Type": "application/json"} if data else {}
        text = self._open(Request(f"{self.address}/api/2.0/mlflow/{path}", data, headers, method=method))
        try:
            document = parse_json(text or b"{}")
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise self.foreign_error()
        return document

    def put(self, path: str, content: bytes) -> None:
        """Send a file."""
        address = f"{self.address}/api/2.0/mlflow-artifacts/artifacts/{quote(path)}"
        self._open(Request(address, content, {"Content-Type": "application/octet-stream"}, method="PUT"))

    def _open(self, request: Request) -> bytes:
        request.add_header("User-Agent", f"drivetrain/{VERSION}")
        if self.authorization:
            request.add_header("Authorization", self.authorization)
        try:
            with self.opener.open(request, timeout=REQUEST_TIMEOUT) as answer:
                content: bytes = answer.read(MAX_ANSWER_BYTES + 1)
                if len(content) > MAX_ANSWER_BYTES:
                    raise self.foreign_error()
                return content
        except HTTPError as error:
            with error:
                raise self._refusal_error(error) from None
        except URLError as error:
            raise self._unreachable_error(error.reason) from None
        except (OSError, HTTPException) as error:
            raise self._unreachable_error(error) from None
        except ValueError:  # its text has the header
            raise TrackerError(
                f"track.mlflow: a request to {self.address} cannot be written",
                f"a host name, and credentials in {', '.join(VARIABLES)} without line breaks",
                "correct the address or the variable",
                passing=False,
            ) from None

    def _refusal_error(self, error: HTTPError) -> TrackerError:
        try:
            document = parse_json(error.read(1 << 20))
        except (ValueError, OSError, HTTPException):
            document = {}
        document = document if isinstance(document, dict) else {}
        text = mask_secrets(str(document.get("message", ""))[:300])
        if document.get("error_code") == "RESOURCE_DOES_NOT_EXIST":
            return MissingError(
                f"track.mlflow: {self.address}: {text}",
                "an experiment and a run that exist there",
                f"remove {self.identity} to begin a new run on the server",
                passing=False,
            )
        if error.code in (401, 403):
            return TrackerError(
                f"track.mlflow: {self.address} answers {error.code}: "
                + ("the user or the token is refused" if self.authorization else "it wants a user or a token")
                + (f", and {self.withheld}" if self.withheld else ""),
                "a user who may write there",
                f"set {VARIABLES[0]}, or {VARIABLES[1]} and {VARIABLES[2]}" + (f"; {self.hint}" if self.hint else ""),
                passing=False,
            )
        if 300 <= error.code < 400:
            return TrackerError(
                f"track.mlflow: {self.address} redirects to another address",
                "the address of the server itself",
                f"use the address that it names: {mask_secrets(error.headers.get('Location', ''))[:200]}",
                passing=False,
            )
        if error.code == 404 and not document:
            return self.foreign_error()
        return TrackerError(
            f"track.mlflow: {self.address} answers {error.code}{f': {text}' if text else ''}",
            "an MLflow server that is well",
            "see its log",
            passing=error.code >= 500 or error.code in _PASSING_CODES,
        )

    def foreign_error(self) -> TrackerError:
        """The error for an answer that no MLflow server gives."""
        return TrackerError(
            f"track.mlflow: what answers at {self.address} is no MLflow server",
            "the address that `mlflow server` prints",
            "correct it; a proxy or a login page may answer instead",
            passing=False,
        )

    def _unreachable_error(self, cause: object) -> TrackerError:
        is_timeout = isinstance(cause, TimeoutError)
        reason = "no answer in time" if is_timeout else str(getattr(cause, "strerror", None) or cause)
        return TrackerError(
            f"track.mlflow: {self.address} cannot be reached: {mask_secrets(reason)[:200]}",
            "a server that answers",
            "check the address, and whether the server runs",
            passing=True,
        )


class MissingError(TrackerError):
    """The server does not know what was named."""


class _NoRedirects(HTTPRedirectHandler):
    """A redirected POST would become a GET, and another host would get the token."""

    def redirect_request(self, *_: object) -> None:
        return None


def _build_authorization(environ: Mapping[str, str]) -> str:
    token, user, password = (environ.get(name, "").strip() for name in VARIABLES)
    if token:
        return f"Bearer {token}"
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}" if user else ""


def _explain_withheld(address: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """Why the server of a job, perhaps a stranger's, gets no credentials, and what to do if it should; empty if it gets them."""
    named_address, consequence = environ.get(URI_NAME, "").strip(), "the credentials of this machine are not sent"
    try:
        named = bool(named_address) and web.parse_origin(named_address) == web.parse_origin(address)
    except ValueError:
        named = False
    if not named:
        cause = f"{URI_NAME} names another server" if named_address else f"{URI_NAME} does not name this server"
        return f"{consequence}, since {cause}", f"if it is your server, export {URI_NAME}={address}"
    scheme, host, _ = web.parse_origin(address)
    if scheme != "https" and not web.is_loopback(host):
        return f"{consequence}, since the address is not encrypted (http)", "use the https address of the server"
    return "", ""
