#!/usr/bin/env python3
"""Moves the files of a clean checkout as tables.py says and rewrites what names them. Stops at what no table names.

    cd CHECKOUT; PYTHONPATH=$PWD .venv/bin/python MOVE/move.py runtime     commit 1: the package
    cd CHECKOUT; PYTHONPATH=$PWD .venv/bin/python MOVE/move.py paths       commit 2a: tests take paths from tests/paths
    cd CHECKOUT; PYTHONPATH=$PWD .venv/bin/python MOVE/move.py tests       commit 2b: the tests
    cd CHECKOUT; PYTHONPATH=$PWD .venv/bin/python MOVE/move.py ignore      commit 2c: .git-blame-ignore-revs
    cd CHECKOUT; PYTHONPATH=$PWD .venv/bin/python MOVE/move.py all         all of them, each committed
    cd CHECKOUT; PYTHONPATH=$PWD .venv/bin/python MOVE/move.py tree        the first three, left in the index
    cd CHECKOUT; PYTHONPATH=$PWD .venv/bin/python MOVE/move.py report      only what no table names; changes nothing

--no-commit leaves the change in the index. Nothing is guessed: a pattern that is not found is an error.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tokenize
from collections import Counter
from io import StringIO
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import byhand
import tables

TOP = Path.cwd()
PACKAGES = ("runtime", "tests")
"""Whose modules have names that change."""
PROGRAMS = {"runtime.report"}
"""Packages that are started with `-m` and stay where they are, though their `__init__` moves."""
BINARY = (".png", ".npz", ".txt", ".json", ".lock", ".whl", ".gitkeep")
PYTHON = ".venv/bin/python"


def run(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        sys.exit(f"{' '.join(command)[:200]}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def tracked(*under: str) -> list[str]:
    return [name for name in run("git", "ls-files", "-z", "--", *under).split("\0") if name]


def module(path: str) -> str:
    parts = path.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# ---- what goes where -------------------------------------------------------------------------------------------------


def unlisted(table: dict[str, str], top: str) -> tuple[list[str], list[str]]:
    """(files that no row names, rows without their file)."""
    files = {name for name in tracked(top) if name.endswith(".py")}
    return sorted(files - set(table)), sorted(set(table) - files)


def checked(table: dict[str, str], top: str) -> dict[str, str]:
    new, gone = unlisted(table, top)
    for name in gone:
        if name != "tests/paths.py":
            print(f"note: {name} stands in the table and is not there (any more)")
    if new:
        sys.exit("no row in tables.py for:\n" + "\n".join(f"    {name!r}: ''," for name in new))
    table = {old: target for old, target in table.items() if old not in gone}
    twice = [name for name, count in Counter(table.values()).items() if count > 1]
    if twice:
        sys.exit(f"two files would be one: {twice}")
    return table


def move(table: dict[str, str]) -> None:
    """Rename the files, and put an empty `__init__.py` into every folder that lacks one."""
    going = {old: new for old, new in table.items() if old != new}
    for old, new in going.items():
        aside = TOP / f"{old}.moving"
        (TOP / old).rename(aside)
        assert new not in table or table[new] != new, f"{old} -> {new}: taken by a file that stays"
    for old, new in going.items():
        (TOP / new).parent.mkdir(parents=True, exist_ok=True)
        assert not (TOP / new).exists(), new
        (TOP / f"{old}.moving").rename(TOP / new)
    for new in table.values():
        for folder in Path(new).parents:
            if folder != Path(".") and not (TOP / folder / "__init__.py").exists():
                (TOP / folder / "__init__.py").write_text("")
    for old in going:
        folder = (TOP / old).parent
        if folder.exists() and not [p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts]:
            shutil.rmtree(folder)


# ---- what names them -------------------------------------------------------------------------------------------------


class Names:
    """Old names of modules and files, and the new ones."""

    def __init__(self, table: dict[str, str], top: str) -> None:
        self.top = top
        self.paths = {old: new for old, new in table.items() if old != new}
        self.modules = {module(old): module(new) for old, new in table.items()}
        self.packages = {module(old) for old in table if old.endswith("/__init__.py")}
        name = r"[A-Za-z_]\w*"
        item = rf"{name}(?: as {name})?"
        self.pattern = re.compile(
            rf"\bfrom (?P<source>{top}(?:\.{name})*) import (?P<names>{item}(?:, {item})*)"
            rf"|(?<![\w.])(?P<dotted>{top}(?:\.{name})+)"
            rf"|(?<![\w.-])(?P<path>{top}/[\w/]+\.py)\b"
        )

    def text(self, text: str) -> str:
        """Text that is no import statement of the file itself: strings, comments, pages."""
        return self.pattern.sub(self._changed, text)

    def _changed(self, match: re.Match[str]) -> str:
        if match["source"]:
            lines = self.statements(match["source"], _aliases(match["names"]))
            if lines is None:
                return match[0]
            text, start, end = match.string, match.start(), match.end()
            before = text[text.rfind("\n", 0, start) + 1 : start]
            alone = not before.strip() and (end == len(text) or text[end] == "\n")
            return (f"\n{before}" if alone else "; ").join(lines)
        if match["path"]:
            return self.paths.get(match["path"], match[0])
        before = match.string[: match.start()]
        if match["dotted"] in PROGRAMS and re.search(r"""-m(?: |["'], ["'])$""", before):
            return match[0]
        return self.dotted(match["dotted"])

    def dotted(self, name: str) -> str:
        """A module, or something in one: the longest beginning that is a module."""
        parts = name.split(".")
        for end in range(len(parts), 1, -1):
            head = ".".join(parts[:end])
            if head in self.modules:
                return ".".join([self.modules[head], *parts[end:]])
        return name

    def statements(self, source: str, aliases: list[tuple[str, str | None]]) -> list[str] | None:
        """The statements for `from source import aliases`; None if nothing changes."""
        made: list[tuple[str, str]] = []
        changed = False
        for name, bound in aliases:
            whole = f"{source}.{name}"
            if whole in self.modules:
                parent, _, leaf = self.modules[whole].rpartition(".")
                word = bound or name
                plain = bound == leaf or (bound is None and leaf == name)
                item = f"{leaf} as {word}" if bound == name == leaf else leaf if plain else f"{leaf} as {word}"
            else:
                parent = self.modules.get(source, source)
                item = f"{name} as {bound}" if bound else name
            changed = changed or (parent, item) != (source, f"{name} as {bound}" if bound else name)
            made.append((parent, item))
        if not changed:
            return None
        sources = list(dict.fromkeys(parent for parent, _ in made))
        return [f"from {parent} import {', '.join(item for p, item in made if p == parent)}" for parent in sources]


def _aliases(text: str) -> list[tuple[str, str | None]]:
    found = []
    for item in text.split(","):
        name, _, bound = item.strip().partition(" as ")
        found.append((name, bound or None))
    return found


def rewrite_python(text: str, names: Names, where: str) -> str:
    """Import statements by the syntax tree, everything between them by pattern."""
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    comments = {t.start[0]: t.string for t in tokenize.generate_tokens(StringIO(text).readline) if t.type == tokenize.COMMENT}
    nodes = sorted(
        (n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)), key=lambda n: (n.lineno, n.col_offset)
    )
    done, position = [], 0
    for node in nodes:
        made = _statement(node, names, where)
        start = offset(node.lineno, node.col_offset)
        assert node.end_lineno and node.end_col_offset is not None
        end = offset(node.end_lineno, node.end_col_offset)
        done.append(names.text(text[position:start]))
        position = end
        if made is None:
            done.append(text[start:end])
            continue
        inside = [line for line in comments if node.lineno <= line < node.end_lineno]
        assert not inside, f"{where}:{node.lineno}: a comment inside of an import"
        comment = comments.get(node.end_lineno, "")
        rest = text[end : text.index("\n", end) if "\n" in text[end:] else len(text)]
        assert rest.strip() == comment, f"{where}:{node.lineno}: more than an import on a line: {rest!r}"
        indent = text[starts[node.lineno - 1] : start]
        assert not indent.strip(), f"{where}:{node.lineno}: something before an import"
        tail = f"  {comment}" if comment else ""
        done.append(f"{tail}\n{indent}".join(made))
    done.append(names.text(text[position:]))
    return "".join(done)


def _statement(node: ast.Import | ast.ImportFrom, names: Names, where: str) -> list[str] | None:
    if isinstance(node, ast.Import):
        for alias in node.names:
            assert not alias.name.startswith(f"{names.top}."), f"{where}:{node.lineno}: `import {alias.name}`: from ... import"
        return None
    assert not node.level, f"{where}:{node.lineno}: a relative import"
    if not node.module or node.module.split(".")[0] != names.top:
        return None
    return names.statements(node.module, [(alias.name, alias.asname) for alias in node.names])


def ambiguous(table: dict[str, str]) -> None:
    """`from package import name` must not mean a definition of its `__init__` and a submodule at once."""
    for path in table:
        if not path.endswith("/__init__.py"):
            continue
        bound = set()
        for node in ast.parse((TOP / path).read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                bound.add(node.name)
            elif isinstance(node, ast.ImportFrom) and node.module != module(path):
                bound |= {alias.asname or alias.name for alias in node.names}
        below = {module(p).removeprefix(module(path) + ".") for p in table if module(p).startswith(module(path) + ".")}
        for name in bound & below:
            print(f"note: {path} defines {name} and there is a submodule {name}")
            users = run("git", "grep", "-nE", rf"from {module(path)} import .*\b{name}\b".replace(r"\b", r"\b"), check=False)
            assert not users, f"ambiguous: {users}"


def rewrite(names: Names, relative: dict[str, str] | None = None) -> None:
    """All tracked texts; `relative` are paths in docs/reliability.md, which are counted from tests/."""
    for path in tracked():
        if path.endswith(BINARY) or not (TOP / path).is_file() or (TOP / path).is_symlink():
            continue
        text = (TOP / path).read_text(encoding="utf-8")
        made = rewrite_python(text, names, path) if path.endswith(".py") else names.text(text)
        if relative and path == "docs/reliability.md":
            def row(match: re.Match[str]) -> str:
                return relative.get(match[1], match[1]) + "::"
            made = re.sub(r"(?<=`)([\w/]+\.py)::", row, made)
        if made != text:
            (TOP / path).write_text(made, encoding="utf-8")


def by_hand(steps: list[tuple[str, str, str]]) -> None:
    """(file, what must stand there, what replaces it); a pattern beginning with `re:` is a regular expression."""
    missing = []
    for path, old, new in steps:
        file = TOP / path
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        if old.startswith("re:"):
            made, count = re.subn(old[3:], new, text, flags=re.MULTILINE)
        else:
            made, count = text.replace(old, new), text.count(old)
        if not count:
            missing.append(f"{path}: {old!r}")
            continue
        file.write_text(made, encoding="utf-8")
    if missing:
        sys.exit("by hand, not found:\n    " + "\n    ".join(missing))


def recount(table: dict[str, str]) -> None:
    """`Path(__file__)` and its parents: what meant the project's folder means it from the new place too."""
    import paths

    for old, new in table.items():
        text = (TOP / new).read_text(encoding="utf-8")
        if "__file__" not in text:
            continue
        lines = text.splitlines(keepends=True)
        finder = paths.Finder(old, {""})
        finder.visit(ast.parse(text))
        for node, _ in reversed(finder.found):
            assert node.lineno == node.end_lineno
            line = lines[node.lineno - 1].encode()
            made = f"Path(__file__).resolve().parents[{new.count('/')}]".encode()
            lines[node.lineno - 1] = (line[: node.col_offset] + made + line[node.end_col_offset :]).decode()
            print(f"note: {new}:{node.lineno} counts to the project: {lines[node.lineno - 1].strip()}")
        made_text = "".join(lines)
        again = paths.Finder(new, {""})
        again.visit(ast.parse(made_text))
        assert len(again.found) == len(finder.found), f"{new}: counts to another folder than the project's"
        (TOP / new).write_text(made_text, encoding="utf-8")
        left = text.count("__file__") - len(finder.found)
        if left and old not in byhand.OWN_FOLDER:
            sys.exit(f"{old}: __file__ is used for something else than the project's folder: look, then add it to OWN_FOLDER")


def rewrap(steps: list[tuple[str, str, int]]) -> None:
    """Paragraphs whose lines have grown."""
    for path, beginning, width in steps:
        text = (TOP / path).read_text(encoding="utf-8")
        parts = text.split("\n\n")
        found = [number for number, part in enumerate(parts) if part.startswith(beginning)]
        if len(found) != 1:
            sys.exit(f"to rewrap, {len(found)} times: {path}: {beginning!r}")
        parts[found[0]] = textwrap.fill(" ".join(parts[found[0]].split()), width, break_long_words=False, break_on_hyphens=False)
        (TOP / path).write_text("\n\n".join(parts), encoding="utf-8")


# ---- afterwards ------------------------------------------------------------------------------------------------------


def tidy(*folders: str) -> None:
    """Order of imports and unused ones, then the format of what is formatted."""
    ruff = ".venv/bin/ruff"
    here = [f for f in ("runtime", "tests", "docs/generate") if (TOP / f).exists()]
    run(ruff, "check", "--quiet", "--fix", *here)
    run(ruff, "check", "--quiet", "--fix", "--select", "I", "benchmarks", "jobs")
    run(ruff, "format", "--quiet", *here)


def commit(message: str) -> None:
    run("git", "add", "-A")
    if "--no-commit" not in sys.argv:
        run("git", "commit", "-q", "-m", message)
        print(run("git", "log", "-1", "--format=%h %s").strip(), "|", run("git", "diff", "--shortstat", "HEAD~1", "-M").strip())


def leftovers(names: Names) -> None:
    """Old names that still stand somewhere."""
    now = {module(path) for path in tracked(names.top) if path.endswith(".py")} | {module(p) for p in names.paths.values()}
    old = {m for m in names.modules if m not in now}
    found = []
    for path in tracked():
        if path.endswith(BINARY) or not (TOP / path).is_file():
            continue
        for number, line in enumerate((TOP / path).read_text(encoding="utf-8").splitlines(), 1):
            for match in re.finditer(rf"(?<![\w.-]){names.top}((?:\.\w+)+|/[\w/]+\.py\b)", line):
                word = match[0]
                if word.endswith(".py") and not (TOP / word).exists() and word in names.paths:
                    found.append(f"{path}:{number}: {word}")
                parts = word.split(".")
                if any(".".join(parts[:end]) in old for end in range(2, len(parts) + 1)) and not any(
                    ".".join(parts[:end]) in now for end in range(len(parts), 1, -1)
                ):
                    found.append(f"{path}:{number}: {word}")
    if found:
        sys.exit("old names are left:\n    " + "\n    ".join(found))


def bare_names(table: dict[str, str]) -> None:
    """Names of test files without their folder, of which no file has the name any more."""
    now = {Path(new).name for new in table.values()}
    old = {Path(name).name for name in table} - now
    found = []
    for path in tracked():
        if path.endswith(BINARY) or not (TOP / path).is_file():
            continue
        for number, line in enumerate((TOP / path).read_text(encoding="utf-8").splitlines(), 1):
            found += [f"{path}:{number}: {word}" for word in re.findall(r"\btest_\w+\.py\b", line) if word in old]
    if found:
        sys.exit("old names of test files, for byhand.TESTS:\n    " + "\n    ".join(found))


def stage_runtime() -> None:
    table = checked(tables.RUNTIME, "runtime")
    ambiguous(table)
    names = Names(table, "runtime")
    before = broken_attributes()
    rewrite(names)
    move(table)
    run("git", "add", "-A", "-N")
    recount(table)
    by_hand(byhand.RUNTIME)
    rewrap(byhand.REWRAP)
    tidy()
    run("git", "add", "-A")
    leftovers(names)
    verify(before, names)
    commit(byhand.MESSAGE_RUNTIME)


def stage_paths() -> None:
    import paths

    (TOP / "tests/paths.py").write_text(paths.MODULE)
    found = paths.rewrite(TOP, [p for p in tracked("tests") if p.endswith(".py") and p != "tests/paths.py"])
    print(f"{found} files take their paths from tests/paths")
    by_hand(byhand.PATHS)
    tidy()
    run("git", "add", "-A")
    paths.none_left(TOP, [p for p in tracked("tests") if p.endswith(".py")])
    commit(byhand.MESSAGE_PATHS)


def stage_tests() -> None:
    table = checked(tables.TESTS, "tests")
    names = Names(table, "tests")
    before = broken_attributes()
    relative = {o.removeprefix("tests/"): n.removeprefix("tests/") for o, n in table.items()}
    rewrite(names, relative)
    move(table)
    run("git", "add", "-A", "-N")
    by_hand(byhand.TESTS)
    tidy()
    run("git", "add", "-A")
    bare_names(table)
    leftovers(names)
    verify(before, names)
    commit(byhand.MESSAGE_TESTS)


def stage_ignore() -> None:
    """The moves, for `git blame --ignore-revs-file`."""
    rows = []
    for message in (byhand.MESSAGE_RUNTIME, byhand.MESSAGE_PATHS, byhand.MESSAGE_TESTS):
        subject = message.splitlines()[0]
        found = run("git", "log", "-20", "--format=%H %s").splitlines()
        revisions = [line.split()[0] for line in found if line.split(" ", 1)[1] == subject]
        assert len(revisions) == 1, (subject, revisions)
        rows += [f"# {subject}", revisions[0]]
    (TOP / ".git-blame-ignore-revs").write_text(byhand.IGNORE_HEAD + "\n".join(rows) + "\n")
    commit(byhand.MESSAGE_IGNORE)


def broken_attributes() -> Counter[str]:
    import verify as checks

    return checks.attributes(TOP)


def verify(before: Counter[str], names: Names) -> None:
    """Every import names something that is there; no attribute of a module is missing that was there before."""
    import verify as checks

    wrong = checks.imports(TOP)
    moved: Counter[str] = Counter()
    for key, count in before.items():
        path, rest = key.split(": ", 1)
        moved[f"{names.paths.get(path, path)}: {rest}"] += count
    worse = checks.attributes(TOP) - moved
    wrong += [f"{key} (not before the move)" for key in worse]
    if wrong:
        sys.exit("wrong after the move:\n    " + "\n    ".join(wrong))
    print("every import names something that is there")


def main() -> None:
    what = sys.argv[1]
    if what == "report":
        for table, top in ((tables.RUNTIME, "runtime"), (tables.TESTS, "tests")):
            new, gone = unlisted(table, top)
            print(top, "no row:", new, "| no file:", [name for name in gone if name != "tests/paths.py"])
        return
    if run("git", "status", "--porcelain", "--untracked-files=no"):
        sys.exit("the checkout is not clean")
    assert (TOP / ".git").exists() and (TOP / "pyproject.toml").exists(), "call it in the top folder of a checkout"
    if what in ("all", "tree", "tests", "runtime"):
        # All or nothing: tables of both stages before the first move.
        if what in ("all", "tree", "runtime"):
            checked(tables.RUNTIME, "runtime")
        if what in ("all", "tree"):
            checked(tables.TESTS, "tests")
    stages = {"runtime": stage_runtime, "paths": stage_paths, "tests": stage_tests, "ignore": stage_ignore}
    if what == "tree":
        sys.argv.append("--no-commit")
    for stage in {"all": list(stages), "tree": ["runtime", "paths", "tests"]}.get(what, [what]):
        print(f"== {stage}")
        stages[stage]()


if __name__ == "__main__":
    main()
