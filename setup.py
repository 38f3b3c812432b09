"""Puts the compose files into wheels, beside the module that starts containers; all else is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithCompose(build_py):
    """The package, and the compose files. An editable installation reads those of the checkout."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            here, place = Path(__file__).parent / "compose", Path(self.build_lib) / "runtime" / "launch" / "compose"
            shutil.copytree(here, place, dirs_exist_ok=True)


setup(cmdclass={"build_py": WithCompose})
