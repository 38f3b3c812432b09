"""Writes YAML that every reader takes alike: without anchors, and with quotes where an old reader sees a boolean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """Write every part where it stands; the same labels occur several times in a manifest."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Several lines as they are, for instance a job file."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def dump(documents: Sequence[Any]) -> str:
    """The documents, one after another."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=100)
