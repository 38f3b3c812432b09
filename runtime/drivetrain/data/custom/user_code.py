"""Loads Python files of the user from one folder and from nowhere else.

Files are read as source, never as bytecode, so the code that is hashed and verified is the code that runs. Each is read
once: all processes of a run read the copy in its folder. Files can import others of their folder at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from drivetrain.data.custom import code_files
from drivetrain.errors import CheckpointError
from drivetrain.job.extension import describe_unfinished
from drivetrain.system.files import read_json, sha256, storage_error, write_json
from drivetrain.system.run_files import RunFiles

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
        copy: a folder with copies, which are read instead; what it lacks is copied when it is first read.
    """

    def __init__(self, folder: Path, expected: Mapping[str, str] | None = None, copy: Path | None = None) -> None:
        self.folder, self.expected, self.copy = folder.resolve(), expected, copy
        self.sources: dict[str, bytes] = {}
        """Content of the files that were read, by name relative to the folder."""
        self._modules: dict[str, ModuleType] = {}
        self._open: Path | None = None

    def call(
        self,
        file: str,
        name: str,
        arguments: Mapping[str, object],
        offered: Mapping[str, object] | None = None,
        positional: Sequence[object] = (),
    ) -> tuple[object, dict[str, object]]:
        """Call a function of a file.

        Args:
            file: relative to the folder.
            name: of the function or class.
            arguments: keyword arguments.
            offered: keyword arguments that are passed only if the signature names them and `arguments` does not.
            positional: positional arguments.

        Returns:
            The result, and all keyword arguments.
        """
        with self._importable((self.folder / file).parent):
            function = getattr(self._module(file), name)
            if not callable(function):
                raise TypeError(f"{name} is of type {type(function).__name__} and cannot be called")
            every = dict(arguments) | _select_arguments(function, arguments, offered or {})
            return function(*positional, **every), every

    def function(self, file: str, name: str, offered: Mapping[str, object]) -> Callable[..., object]:
        """A function of a file, with those keyword arguments that its signature names."""
        with self._importable((self.folder / file).parent):
            function = getattr(self._module(file), name)
        return partial(function, **_select_arguments(function, {}, offered))

    def accepted(self, file: str, name: str, arguments: Mapping[str, object]) -> dict[str, object]:
        """The arguments that a function of a loaded file has in its signature."""
        return _select_arguments(getattr(self._module(file), name), {}, arguments)

    def __deepcopy__(self, memo: object) -> Code:
        return self

    def digests(self) -> dict[str, str]:
        """SHA-256 of every loaded file, by name relative to the folder."""
        return {name: hashlib.sha256(content).hexdigest() for name, content in sorted(self.sources.items())}

    def digests_of_copy(self) -> dict[str, str]:
        """SHA-256 of every file in the folder with copies, by name; empty without one."""
        paths = [path for path in self.copy.rglob("*") if path.is_file()] if self.copy else []
        return {path.relative_to(self.copy or path).as_posix(): sha256(path) for path in sorted(paths)}

    def take(self, file: str) -> None:
        """Read a file, and what it imports of its folder; nothing runs.

        Raises:
            CheckpointError: if a digest is not the expected one.
            OSError: if the file cannot be read.
        """
        if self.expected is None:
            code_files.read_with_imports(self.folder / file, self.read)
        else:  # no other file may even be read
            self.read(self.folder / file)

    def with_copies(self, value: Any) -> Any:
        """Arguments of a function, in which the path of a small file or folder is that of its copy.

        Raises:
            CheckpointError: if its digest is not the expected one.
        """
        if isinstance(value, Mapping):
            return {key: self.with_copies(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.with_copies(inner) for inner in value]
        return self._path_of_copy(value) if isinstance(value, str) else value

    def keep_opened(self, paths: Sequence[str]) -> None:
        """Keep small files of the folder that the code has opened, such as a configuration beside it.

        Raises:
            CheckpointError: if one of them is no longer what the run was started with.
        """
        for path in dict.fromkeys(Path(path).absolute() for path in paths):
            is_inside = path.resolve().is_relative_to(self.folder) and not path.is_relative_to(sys.prefix)
            if (
                not is_inside
                or path.suffix in (".py", ".pyc")
                or not path.is_file()
                or (self.copy and path.is_relative_to(self.copy))
            ):
                continue
            name = path.resolve().relative_to(self.folder).as_posix()
            is_allowed = self.expected is None or name in self.expected
            if is_allowed and code_files.list_copies(path, name) and self.read_as(name, path) != path.read_bytes():
                raise CheckpointError(
                    f"{path} has changed since the run was started",
                    "the file as the run read it first",
                    "undo the change, or name the file in `arguments`, and its copy is read",
                )

    def check_opened(self, paths: Sequence[str]) -> None:
        """Check that files which the code of a model has opened elsewhere are those of the training.

        Raises:
            CheckpointError: if one has the name of a file of the training and another content.
        """
        files = {name: digest for name, digest in (self.expected or {}).items() if not name.endswith(".py")}
        for path in dict.fromkeys(Path(path).absolute() for path in paths):
            digests = [
                digest for name, digest in files.items() if path.parts[-len(Path(name).parts) :] == Path(name).parts
            ]
            elsewhere = not path.resolve().is_relative_to(self.folder) and path.is_relative_to(Path.cwd())
            if elsewhere and digests and path.is_file() and sha256(path) not in digests:
                raise CheckpointError(
                    f"{path} has SHA-256 {sha256(path)[:12]}..., and the model was trained with another one",
                    f"the file as it lies in {self.folder}",
                    "restore it; code that reads it by Path(__file__).with_name(...), or by a path in `arguments`, "
                    "gets the file that is stored with the model",
                )

    def _path_of_copy(self, text: str) -> str:
        name = code_files.name_copy(text)
        places = [self.copy / name, self.folder / name] if self.copy else [self.folder / name]
        original = next((path for path in places if os.path.exists(path)), code_files.find_original(self.folder, name))
        names = code_files.list_copies(original, name)
        if self.expected is not None:
            names = [file_name for file_name in self.expected if file_name == name or file_name.startswith(f"{name}/")]
        for file_name in names:
            self.read_as(file_name, original / file_name[len(name) + 1 :])
        return str((self.copy / name if self.copy else original).absolute()) if names else text

    def read(self, path: Path) -> bytes:
        """Read and record a file; verify it if digests are expected.

        Raises:
            CheckpointError: if its digest is not the expected one.
        """
        if not path.resolve().is_relative_to(self.folder):
            raise CheckpointError(f"{path} is outside {self.folder}", "code inside this folder", "copy it there")
        return self.read_as(path.relative_to(self.folder).as_posix(), path)

    def read_as(self, name: str, path: Path) -> bytes:
        """The content of a file as it was when it was first read, in this process or in the one that made the copy.

        Raises:
            CheckpointError: if its digest is not the expected one.
        """
        if name in self.sources:
            return self.sources[name]
        if self.copy and not (self.copy / name).exists():
            write_copy(self.copy, name, path.read_bytes())
        content = RunFiles(self.copy).read_bytes(name) if self.copy else path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if self.expected is not None and self.expected.get(name) != digest:
            expectation = (
                f"expected {self.expected[name][:12]}..." if name in self.expected else "which is not recorded"
            )
            raise CheckpointError(
                f"{path} has SHA-256 {digest[:12]}..., {expectation}",
                "the files that the model was trained with",
                "restore it from the copy in the run folder",
            )
        self.sources[name] = content
        return content

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a sibling of the file that is being loaded; called by Python's import system."""
        places = [self._open or _place_of_importer(self)] if path is None else [Path(folder) for folder in path]
        for folder in places:
            if folder is not None and (module_spec := self._sibling(fullname, folder)):
                _siblings.setdefault(fullname, self._open or folder)
                return module_spec
        return None

    def _sibling(self, fullname: str, folder_of_importer: Path) -> ModuleSpec | None:
        folder = folder_of_importer / fullname.rpartition(".")[2]
        if not folder.resolve().is_relative_to(self.folder):
            return None
        for file, inside in ((folder / "__init__.py", [str(folder)]), (folder.with_name(f"{folder.name}.py"), None)):
            if self._has(file) and file.resolve().is_relative_to(self.folder):
                return self._spec(fullname, file, inside)
        # A folder of images named `torchvision` must not hide the library.
        if self._holds_code(folder) and ("." in fullname or PathFinder.find_spec(fullname) is None):
            package = ModuleSpec(fullname, None, is_package=True)
            package.submodule_search_locations = [str(folder)]
            return package
        return None

    def _holds_code(self, folder: Path) -> bool:
        """Whether Python files are in a folder, or were there when the copies were made."""
        copy = self.copy / folder.relative_to(self.folder) if self.copy else folder
        return any(candidate.is_dir() and any(candidate.glob("*.py")) for candidate in (folder, copy))

    def _has(self, file: Path) -> bool:
        """Whether a file is there, or was there when the copies were made."""
        name = file.relative_to(self.folder).as_posix()
        return name in self.sources or bool(self.copy and (self.copy / name).is_file()) or file.is_file()

    def _spec(self, name: str, file: Path, inside: list[str] | None) -> ModuleSpec | None:
        loader = _UserFileLoader(name, str(file), self)
        return importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=inside)

    def _module(self, file: str) -> ModuleType:
        if file not in self._modules:
            path = self.folder / file
            self.take(file)
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
    def _importable(self, folder: Path) -> Iterator[None]:
        """Let siblings be imported first, as in a script; drops modules of the same name from another folder."""
        for name, where in list(_siblings.items()):
            top = folder / name.partition(".")[0]
            if where != folder and (top.is_dir() or top.with_name(f"{top.name}.py").exists()):
                sys.modules.pop(name, None)
                del _siblings[name]
        self._open = folder
        # It stays, for imports inside of functions that are called later, such as forward().
        sys.meta_path[:] = [self, *(finder for finder in sys.meta_path if finder is not self)]
        try:
            yield
        finally:
            self._open = None


class _UserFileLoader(SourceFileLoader):
    """Loads a source file through its Code, and no bytecode, which could come from another source."""

    def __init__(self, name: str, path: str, code: Code) -> None:
        super().__init__(name, path)
        self.code, self.place = code, code._open

    def path_stats(self, path: object) -> Any:
        raise OSError  # tells Python's loader that there is no bytecode

    def get_data(self, path: Any) -> bytes:
        return self.code.read(Path(path))


def _place_of_importer(code: Code) -> Path | None:
    """Where the file that imports something now finds its siblings; None if it is not of this code."""
    frame = inspect.currentframe()
    while frame and frame.f_globals.get("__name__", "").startswith((__name__, "importlib", "_frozen_importlib")):
        frame = frame.f_back
    loader = frame.f_globals.get("__loader__") if frame else None
    return loader.place if isinstance(loader, _UserFileLoader) and loader.code is code else None


def at(folder: Path, expected: Mapping[str, str] | None = None, copy: Path | None = None) -> Code:
    """The code of a folder, one object per process; once verified, it stays verified."""
    key = folder.resolve()
    present = _codes.get(key)
    if (
        present is None
        or (expected is not None and present.expected != expected)
        or (copy is not None and present.copy != copy)
    ):
        present = _codes[key] = Code(key, expected, copy)
    return present


def write_copy(folder: Path, name: str, content: bytes) -> None:
    """Write a copy of a file, unless another process has.

    Raises:
        StorageError: if it cannot be written.
    """
    RunFiles(folder.parent, os.path.join(folder.name, os.path.dirname(name))).make_folder()
    try:
        with contextlib.suppress(FileExistsError), RunFiles(folder).open(name, "xb") as file:
            file.write(content)
    except OSError as error:
        raise storage_error(folder / name, error) from None


def find_allowed(folder: Path) -> Code:
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


def _select_arguments(
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
            f"{describe_unfinished(run)} and was started with a different {', '.join(changed)}",
            "the files that the run was started with",
            "undo the change, or start a new run with --new",
        )
