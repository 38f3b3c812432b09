"""Puts compose files and the address of the source into wheels; all else is in pyproject.toml."""

import os
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithCompose(build_py):
    """The package, and the compose files. An editable installation reads those of the checkout."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            here, place = Path(__file__).parent / "compose", Path(self.build_lib) / "drivetrain" / "launch" / "compose"
            shutil.copytree(here, place, dirs_exist_ok=True)


source = os.environ.get("DRIVETRAIN_SOURCE")  # scripts/wheel sets it
setup(cmdclass={"build_py": WithCompose}, project_urls={"Source": source} if source else {})
