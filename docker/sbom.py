"""The parts of an image as a CycloneDX document on stdout: Debian's packages, Python's, and single files.

    python3 docker/sbom.py WORD      runs while the image is built; asks no network

The same image gives the same bytes: no time, no serial number, everything sorted.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

FORMAT = "${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\n"

LOCK = Path("/usr/local/share/doc/libiomp5/openmp-cpu.txt")


def main(word: str) -> None:
    """Print the document."""
    components = [*list_debian_packages(), *list_python_packages(), *list_single_files()]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "bom-ref": "image", "name": f"drivetrain/{word}"}},
        "components": sorted(components, key=lambda part: str(part["purl"])),
    }
    print(json.dumps(document, indent=1))


def list_debian_packages() -> list[dict[str, Any]]:
    """The packages that dpkg has installed."""
    output = subprocess.run(["dpkg-query", "-W", "-f", FORMAT], capture_output=True, text=True, check=True).stdout
    rows = [line.split("\t") for line in output.splitlines()]
    return [
        make_component("deb/debian", name, version, f"?arch={kind}")
        for state, name, version, kind in rows
        if state[1] == "i"
    ]


def list_python_packages() -> list[dict[str, Any]]:
    """The packages that pip has installed, with their licences as they state them."""
    components = []
    for package in metadata.distributions(path=[*sys.path, f"{sys.prefix}/lib/timm"]):  # see docker/unused/aside
        name = re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower()
        row = make_component("pypi", name, package.version)
        stated = package.metadata.get("License-Expression") or package.metadata.get("License") or ""  # type: ignore[attr-defined]
        if stated and len(stated) < 100:
            row["licenses"] = [{"license": {"name": stated}}]
        components.append(row)
    return components


def list_single_files() -> list[dict[str, Any]]:
    """The one library that is copied out of a wheel, where the image has it."""
    pinned = re.search(r"^intel-openmp==([\w.]+)", LOCK.read_text(encoding="utf-8"), re.M) if LOCK.exists() else None
    return [make_component("pypi", "intel-openmp", pinned[1])] if pinned else []


def make_component(kind: str, name: str, version: str, qualifiers: str = "") -> dict[str, Any]:
    """One component."""
    address = f"pkg:{kind}/{quote(name)}@{quote(version, safe='~')}{qualifiers}"
    return {"type": "library", "bom-ref": address, "name": name, "version": version, "purl": address}


if __name__ == "__main__":
    main(*sys.argv[1:])
