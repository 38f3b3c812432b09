"""The value type of an address in an object store, such as `checkpoint.copy_to`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from drivetrain.storage import remote_address

STORE_PATTERN = r"^(s3|gs|az)://[A-Za-z0-9][A-Za-z0-9._-]*(/[^?#@]*)?$"
"""For editors; `parse` decides."""


def check_store_address(value: object) -> object:
    """Check the address of a folder in an object store; it becomes part of the run folder, so it has no credentials."""
    try:
        is_valid = isinstance(value, str) and remote_address.parse(value).writable
    except remote_address.BadAddress:
        is_valid = False
    if not is_valid:
        raise PydanticCustomError("store", f"{remote_address.POSSIBLE}; without user, password and query")
    return value


StoreAddress = Annotated[str, BeforeValidator(check_store_address), Field(json_schema_extra={"pattern": STORE_PATTERN})]
