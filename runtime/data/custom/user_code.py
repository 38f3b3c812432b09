"""Loads Python files of the user from one folder and from nowhere else.

Files are read as source, never as bytecode, so the code that is hashed and verified is the code that runs. Files can
import others of their folder while they are loaded and while their factory is called.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from runtime.errors import CheckpointError
from runtime.job.extension import unfinished
from runtime.system.files import read_json, write_json

RECORD = "code.json"
"""In a run folder: SHA-256 of the user's files, by name."""

_codes: dict[Path, Code] = {}
_siblings: dict[str, Path] = {}
"""Modules that were imported as siblings, each with the folder it came from."""


class Code(MetaPathFinder):
    """The Python files of one folder; also an import hook for them.

    Args:
        folder: no file outside of it is loaded.
        expected: SHA-256 by name relative to the folder; None to accept any file.
    """

    def __init__(self, folder: Path, expected: Mapping[str, str] | None = None) -> None:
        self.folder, self.expected = folder.resolve(), expected
        self.sources: dict[str, bytes] = {}
        """Content of the loaded files, by name relative to the folder."""
        self._modules: dict[str, ModuleType] = {}
        self._open: Path | None = None

    def call(
        self,
        file: str,
        name: str,
        arguments: Mapping[str, object],
        offered: Mapping[str, object] | None = None,
        given: Sequence[object] = (),
    ) -> tuple[object, dict[str, object]]:
        """Call a function of a file.

        Args:
            file: relative to the folder.
            name: of the function or class.
            arguments: keyword arguments.
            offered: keyword arguments that are passed only if the signature names them and `arguments` does not.
            given: positional arguments.

        Returns:
            The result, and all keyword arguments.
        """
        with self._importable((self.folder / file).parent):
            function = getattr(self._module(file), name)
            if not callable(function):
                raise TypeError(f"{name} is of type {type(function).__name__} and cannot be called")
            every = dict(arguments) | _wanted(function, arguments, offered or {})
            return function(*given, **every), every

    def __deepcopy__(self, memo: object) -> Code:
        return self

    def digests(self) -> dict[str, str]:
        """SHA-256 of every loaded file, by name relative to the folder."""
        return {name: hashlib.sha256(content).hexdigest() for name, content in sorted(self.sources.items())}

    def read(self, path: Path) -> bytes:
        """Read and record a file; verify it if digests are expected.

        Raises:
            CheckpointError: if its digest is not the expected one.
        """
        if not path.resolve().is_relative_to(self.folder):
            raise CheckpointError(f"{path} is outside {self.folder}", "code inside this folder", "copy it there")
        name, content = path.relative_to(self.folder).as_posix(), path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if self.expected is not None and self.expected.get(name) != digest:
            wanted = f"expected {self.expected[name][:12]}..." if name in self.expected else "which is not recorded"
            raise CheckpointError(
                f"{path} has SHA-256 {digest[:12]}..., {wanted}",
                "the files that the model was trained with",
                "restore it from the copy in the run folder",
            )
        self.sources[name] = content
        return content

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a sibling of the file that is being loaded; called by Python's import system."""
        places = [self._open] if path is None else [Path(place) for place in path]
        for place in places:
            if place is not None and (found := self._sibling(fullname, place)):
                _siblings.setdefault(fullname, self._open or place)
                return found
        return None

    def _sibling(self, fullname: str, place: Path) -> ModuleSpec | None:
        folder = place / fullname.rpartition(".")[2]
        if not folder.resolve().is_relative_to(self.folder):
            return None
        for file, inside in ((folder / "__init__.py", [str(folder)]), (folder.with_name(f"{folder.name}.py"), None)):
            if file.is_file() and file.resolve().is_relative_to(self.folder):
                return self._spec(fullname, file, inside)
        # A folder of images named `torchvision` must not hide the library.
        if folder.is_dir() and any(folder.glob("*.py")) and ("." in fullname or PathFinder.find_spec(fullname) is None):
            package = ModuleSpec(fullname, None, is_package=True)
            package.submodule_search_locations = [str(folder)]
            return package
        return None

    def _spec(self, name: str, file: Path, inside: list[str] | None) -> ModuleSpec | None:
        loader = _UserFileLoader(name, str(file), self)
        return importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=inside)

    def _module(self, file: str) -> ModuleType:
        if file not in self._modules:
            path = self.folder / file
            mark = hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()
            spec = self._spec(f"_own_{path.stem}_{mark}", path, None)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            # Dataclasses and torch's compiler look modules up by name.
            sys.modules[spec.name] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[spec.name]
                raise
            self._modules[file] = module
        return self._modules[file]

    @contextlib.contextmanager
    def _importable(self, place: Path) -> Iterator[None]:
        """Let siblings be imported first, as in a script; drops modules of the same name from another folder."""
        for name, where in list(_siblings.items()):
            top = place / name.partition(".")[0]
            if where != place and (top.is_dir() or top.with_name(f"{top.name}.py").exists()):
                sys.modules.pop(name, None)
                del _siblings[name]
        self._open = place
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            sys.meta_path.remove(self)
            self._open = None


class _UserFileLoader(SourceFileLoader):
    """Loads a source file through its Code, and no bytecode, which could come from another source."""

    def __init__(self, name: str, path: str, code: Code) -> None:
        super().__init__(name, path)
        self.code = code

    def path_stats(self, path: object) -> Any:
        raise OSError  # tells Python's loader that there is no bytecode

    def get_data(self, path: Any) -> bytes:
        return self.code.read(Path(path))


def at(folder: Path, expected: Mapping[str, str] | None = None) -> Code:
    """The code of a folder, one object per process; once verified, it stays verified."""
    key = folder.resolve()
    if key not in _codes or (expected is not None and _codes[key].expected != expected):
        _codes[key] = Code(key, expected)
    return _codes[key]


def allowed(folder: Path) -> Code:
    """The code of a folder that `at` or `code_consent.stored` has opened before.

    Raises:
        CheckpointError: if it has not been opened.
    """
    if folder.resolve() not in _codes:
        raise CheckpointError(
            f"{folder} contains code that is not approved to run",
            "a model loaded with its code approved",
            "load the model first",
        )
    return _codes[folder.resolve()]


def _wanted(
    function: Callable[..., object], arguments: Mapping[str, object], offered: Mapping[str, object]
) -> dict[str, object]:
    try:
        names = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
    return {name: value for name, value in offered.items() if name in names and name not in arguments}


def short_name(file: str) -> str | None:
    """A loaded file's name relative to its Code's folder; None for a file that is not the user's."""
    path = Path(file)
    for code in _codes.values():
        if path.is_relative_to(code.folder) and path.relative_to(code.folder).as_posix() in code.sources:
            return path.relative_to(code.folder).as_posix()
    return None


def remember(run: Path, code: Code) -> None:
    """Record the digests of a run's files; a resumed run must use the same files.

    Raises:
        CheckpointError: if a file has changed since the run was started.
    """
    before, now = read_json(run / RECORD), code.digests()
    if before is None:
        write_json(run / RECORD, now)
        return
    changed = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    if changed:
        raise CheckpointError(
            f"{unfinished(run)} and was started with a different {', '.join(changed)}",
            "the files that the run was started with",
            "undo the change, or start a new run with --new",
        )
