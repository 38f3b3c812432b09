"""Loads Python files of the user from one folder only.

Files are read as source, never as bytecode, so the code that is hashed and verified is the code that runs. Each file is
read once: all processes of a run read the copy in its folder. Files can import others of their folder at any time.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import importlib.util
import inspect
import io
import os
import sys
import tempfile
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from drivetrain.data.custom import code_files
from drivetrain.errors import CheckpointError
from drivetrain.job.extension import describe_unfinished
from drivetrain.system.files import blame_storage
from drivetrain.system.run_files import INPUTS_FILE, MISSING, RunFiles, damaged_error

_opened_codes: dict[Path, Code] = {}
"""Code of each folder that this process has opened."""
_copies: list[tempfile.TemporaryDirectory[str]] = []
"""Folders with copies of the code of models, which are removed when the process ends."""
_imported_from: dict[str, Path] = {}
"""Folder of the importing file of each module that was imported from the user's folder, by module name."""


class Code(MetaPathFinder):
    """Python files of one folder; also an import hook for them.

    Args:
        folder: the folder of the files; no file outside of it is loaded.
        expected: SHA-256 by name relative to the folder; None to accept any file.
        copy: a folder with copies of the files, which are read instead; a missing copy is written at the first read.
    """

    def __init__(self, folder: Path, expected: Mapping[str, str] | None = None, copy: Path | None = None) -> None:
        self.folder, self.expected, self.copy = folder.resolve(), expected, copy
        self.sources: dict[str, bytes] = {}
        """Content of the files in `copy` and of the files that were read, by name relative to the folder."""
        self._modules: dict[str, ModuleType] = {}
        if copy:
            for path in sorted(path for path in copy.rglob("*") if path.is_file()):
                self._record(path.relative_to(copy).as_posix(), path)

    def bind(
        self,
        file: str,
        name: str,
        arguments: Mapping[str, object],
        offered: Mapping[str, object] | None = None,
    ) -> partial[Any]:
        """Return a function or class of a file with its keyword arguments; they are the `keywords` of the result.

        Keyword arguments that are `offered` are passed only if the signature names them and `arguments` does not.
        """
        function = getattr(self._load_module(file), name)
        if not callable(function):
            raise TypeError(f"{name} is of type {type(function).__name__} and cannot be called")
        names: Container[str] = ()
        with contextlib.suppress(TypeError, ValueError):
            names = inspect.signature(function).parameters
        more = {key: value for key, value in (offered or {}).items() if key in names and key not in arguments}
        return partial(function, **arguments, **more)

    def __deepcopy__(self, memo: object) -> Code:
        return self

    def digests(self) -> dict[str, str]:
        """Compute the SHA-256 of every file in `sources`, by name relative to the folder."""
        return {name: hashlib.sha256(content).hexdigest() for name, content in sorted(self.sources.items())}

    def read_with_imports(self, file: str) -> None:
        """Read a file, and the files of its folder that it imports, without running them.

        Raises:
            CheckpointError: if a digest differs from the expected digest.
            OSError: if the file cannot be read.
        """
        if self.expected is None:
            code_files.read_with_imports(self.folder / file, self.read)
        else:  # files without an expected digest may not even be read
            self.read(self.folder / file)

    def with_copies(self, value: Any) -> Any:
        """Replace paths of small files or folders in arguments of a function with the paths of their copies.

        Raises:
            CheckpointError: if a digest differs from the expected digest.
        """
        if isinstance(value, Mapping):
            return {key: self.with_copies(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.with_copies(inner) for inner in value]
        return self._find_copy(value) if isinstance(value, str) else value

    @contextlib.contextmanager
    def watch_opens(self) -> Iterator[set[str]]:
        """Collect the small files of the folder that Python code opens in the block and that are not copied.

        A function that returns something else if such a file is missing would build another network from its copy.
        """
        names, opening = set[str](), io.open

        def open_watched(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            stream = opening(file, mode, *arguments, **options)
            path = Path(os.path.abspath(os.fsdecode(file))) if isinstance(file, str | os.PathLike) else None
            if path and "r" in mode and self._lacks_copy(path):
                names.add(path.relative_to(self.folder).as_posix())
            return stream

        builtins.open = io.open = open_watched
        try:
            yield names
        finally:
            builtins.open = io.open = opening

    def _lacks_copy(self, path: Path) -> bool:
        """Return whether an existing file belongs to the folder, is small enough to be copied, and is not copied."""
        if not path.is_relative_to(self.folder) or path.suffix == ".py":
            return False
        if path.relative_to(self.folder).as_posix() in self.sources or path.stat().st_size > code_files.MAX_COPY_BYTES:
            return False
        return self.copy is None or not path.is_relative_to(self.copy.absolute())

    def _find_copy(self, text: str) -> str:
        """Return the path of the copy of a file or folder, written if needed; the text itself if it is not copied."""
        name = os.path.normpath(text)
        known_names = self.sources if self.expected is None else self.expected
        names = [path for path in known_names if path == name or path.startswith(f"{name}/")]
        if not names and self.expected is None:
            names = code_files.list_copies(self.folder, text)
        for file_name in names:
            self.read_as(file_name, self.folder / file_name)
        return str(((self.copy or self.folder) / name).absolute()) if names else text

    def read(self, path: Path) -> bytes:
        """Read and record a file; verify it if digests are expected.

        Raises:
            CheckpointError: if its digest differs from the expected digest, or it is outside of the folder.
        """
        if not path.resolve().is_relative_to(self.folder):
            raise CheckpointError(f"{path} is outside {self.folder}", "code inside this folder", "copy it there")
        return self.read_as(path.relative_to(self.folder).as_posix(), path)

    def read_as(self, name: str, path: Path) -> bytes:
        """Return the content of a file at its first read, in this process or in the process that wrote the copy.

        Raises:
            CheckpointError: if its digest differs from the expected digest.
        """
        if name not in self.sources:
            if self.copy:
                # Another process may have written its copy of the file first: all use that one.
                write_copy(self.copy, name, path.read_bytes())
            self._record(name, path)
        return self.sources[name]

    def _record(self, name: str, path: Path) -> None:
        """Record the content of a file, or of its copy; `path` is its name in messages."""
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

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module beside the file that imports it, or inside of a package; called by Python's import system."""
        root = self._find_root()
        for folder in [root] if path is None else map(Path, path):
            if folder is not None and (module_spec := self._find_module(fullname, folder, root or folder)):
                _imported_from.setdefault(fullname, root or folder)
                return module_spec
        return None

    def _find_root(self) -> Path | None:
        """Find the folder where the user's file that is running looks for modules; None if no such file is running."""
        frame = inspect.currentframe()
        while frame:
            loader = frame.f_globals.get("__loader__")
            if isinstance(loader, _UserFileLoader) and loader.code is self:
                return loader.root
            frame = frame.f_back
        return None

    def _find_module(self, fullname: str, parent: Path, root: Path) -> ModuleSpec | None:
        folder = parent / fullname.rpartition(".")[2]
        if not folder.is_relative_to(self.folder):
            return None
        module = folder.with_name(f"{folder.name}.py")
        for file, locations in ((folder / "__init__.py", [str(folder)]), (module, None)):
            if self._has(file):
                return self._build_spec(fullname, file, locations, root)
        # A folder of images named `torchvision` must not hide the library.
        if self._holds_code(folder) and ("." in fullname or PathFinder.find_spec(fullname) is None):
            package = ModuleSpec(fullname, None, is_package=True)
            package.submodule_search_locations = [str(folder)]
            return package
        return None

    def _has(self, file: Path) -> bool:
        """Return whether a file of the folder exists, or existed when the copies were written."""
        is_copied = file.relative_to(self.folder).as_posix() in self.sources
        return is_copied or (file.is_file() and file.resolve().is_relative_to(self.folder))

    def _holds_code(self, folder: Path) -> bool:
        """Return whether a folder has Python files, or had some when the copies were written."""
        copied_files = (self.folder / name for name in self.sources)
        return any(file.suffix == ".py" and file.parent == folder for file in (*copied_files, *folder.glob("*.py")))

    def _build_spec(self, name: str, file: Path, locations: list[str] | None, root: Path) -> ModuleSpec:
        loader = _UserFileLoader(name, str(file), self, root)
        spec = importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=locations)
        assert spec is not None
        return spec

    def _load_module(self, file: str) -> ModuleType:
        path = self.folder / file
        self._import_first(path.parent)
        if file not in self._modules:
            self.read_with_imports(file)
            path_digest = hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()
            spec = self._build_spec(f"_own_{path.stem}_{path_digest}", path, None, path.parent)
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

    def _import_first(self, folder: Path) -> None:
        """Import from this folder first, as in a script; modules of the same name from other folders are dropped."""
        for name, imported_from in list(_imported_from.items()):
            path = folder / name.partition(".")[0]
            if imported_from != folder and (path.is_dir() or path.with_name(f"{path.name}.py").exists()):
                sys.modules.pop(name, None)
                del _imported_from[name]
        # The hook stays, for imports inside functions that are called later, such as forward().
        sys.meta_path[:] = [self, *(finder for finder in sys.meta_path if finder is not self)]


class _UserFileLoader(SourceFileLoader):
    """Loader of a source file through its Code; it never loads bytecode, which could come from another source."""

    def __init__(self, name: str, path: str, code: Code, root: Path) -> None:
        super().__init__(name, path)
        self.code = code
        self.root = root
        """Folder where the file looks for modules."""

    def path_stats(self, path: object) -> Any:
        raise OSError  # signals to Python's loader that there is no bytecode

    def get_data(self, path: Any) -> bytes:
        return self.code.read(Path(path))


def open_code(folder: Path, expected: Mapping[str, str] | None = None, copy: Path | None = None) -> Code:
    """Open the code of a folder, with one object per process unless other digests or copies are requested."""
    key = folder.resolve()
    code = _opened_codes.get(key)
    if code is None or (expected is not None and code.expected != expected) or (copy is not None and code.copy != copy):
        code = _opened_codes[key] = Code(key, expected, copy)
    return code


def open_stored(folder: Path, expected: Mapping[str, str]) -> Code:
    """Open a temporary copy of the code of a model, so that code which writes beside itself leaves the model as it is.

    Raises:
        CheckpointError: if a digest of a file differs from the expected digest, or a Python file has none.
        StorageError: if the copy cannot be written.
    """
    stored, key = Code(folder, expected), folder.resolve()
    code = _opened_codes.get(key)
    if code is None or code.expected != expected:
        _copies.append(tempfile.TemporaryDirectory(prefix="drivetrain-code-"))
        copy = Path(_copies[-1].name)
        for path in sorted(path for path in key.rglob("*") if path.is_file()):
            name = path.relative_to(key).as_posix()
            if name in expected or path.suffix == ".py":
                write_copy(copy, name, stored.read(path))
            else:  # the user has put it there
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                (copy / name).symlink_to(path)
        code = _opened_codes[key] = Code(copy, expected)
    return code


def write_copy(folder: Path, name: str, content: bytes) -> None:
    """Write a copy of a file, unless another process has; raises StorageError if it cannot be written."""
    RunFiles(folder.parent, os.path.join(folder.name, os.path.dirname(name))).make_folder()
    with (
        blame_storage(folder / name),
        contextlib.suppress(FileExistsError),
        RunFiles(folder).open(name, "xb") as file,
    ):
        file.write(content)


def find_opened(folder: Path) -> Code:
    """Find the code of a folder that `open_code` or `code_consent.load_code` has already opened.

    Raises:
        CheckpointError: if it has not been opened.
    """
    if folder.resolve() not in _opened_codes:
        raise CheckpointError(
            f"{folder} contains code that is not approved to run",
            "a model loaded with its code approved",
            "load the model first",
        )
    return _opened_codes[folder.resolve()]


def find_short_name(file: str) -> str | None:
    """Find the name of a loaded file relative to the folder of its Code; None for a file that is not the user's."""
    path = Path(file)
    for code in _opened_codes.values():
        if path.is_relative_to(code.folder) and path.relative_to(code.folder).as_posix() in code.sources:
            return path.relative_to(code.folder).as_posix()
    return None


def record_digests(run: Path, code: Code) -> None:
    """Record the digests of a run's files; a resumed run must use the same files.

    Raises:
        CheckpointError: if a file has changed since the run was started.
    """
    (record, problem), current = RunFiles(run).read_checked_object(INPUTS_FILE), code.digests()
    if problem == MISSING:
        RunFiles(run).write_json(INPUTS_FILE, {"code": current})
        return
    if problem or not isinstance(recorded := record.get("code"), dict):
        raise damaged_error(run / INPUTS_FILE, problem or "it lists no code")
    changed = [name for name in sorted({*recorded, *current}) if recorded.get(name) != current.get(name)]
    if changed:
        raise CheckpointError(
            f"{describe_unfinished(run)} and was started with a different {', '.join(changed)}",
            "the files that the run was started with",
            "undo the change, or start a new run with --new",
        )
