"""The base image is made of packages that Debian has signed."""

from __future__ import annotations

import shlex

from tests.paths import ROOT


def test_no_package_is_taken_without_a_signature() -> None:
    text = (ROOT / "scripts" / "base-image").read_text().replace("\\\n", "")
    lines = [shlex.split(line.partition(">")[0]) for line in text.splitlines() if line.startswith("debootstrap ")]
    assert [line[:3] for line in lines] == [["debootstrap", "--force-check-gpg", "--keyring=$KEYS"]]
    assert "--allow-unauthenticated" not in text
    assert "trusted=yes" not in text
