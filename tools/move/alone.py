"""Imports every module of a tree alone, each in a fork of a process that has only libraries loaded."""
import os, sys
from pathlib import Path
top = Path.cwd(); sys.path.insert(0, str(top))
import torch, numpy, PIL.Image, matplotlib, rich, pydantic, yaml, pytest  # noqa
try:
    import transformers, docker, tensorboard  # noqa
except ImportError: pass
assert not [m for m in sys.modules if m.split(".")[0] == "runtime"]
bad = n = 0
folders = sys.argv[1:] or ["runtime", "docs/generate"]
for path in sorted(p for f in folders for p in (top / f).rglob("*.py")):
    parts = path.relative_to(top).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    if name.endswith("__main__"): continue
    n += 1
    pid = os.fork()
    if not pid:
        try:
            import importlib
            m = importlib.import_module(name)
            assert m.__file__ == str(path), m.__file__
        except BaseException as e:
            print("BAD", name, repr(e)[:300], flush=True); os._exit(1)
        os._exit(0)
    bad += os.waitpid(pid, 0)[1] != 0
print(n, "modules,", bad, "bad"); sys.exit(bool(bad))
