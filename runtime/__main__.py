"""`python -m runtime` in a checkout: the name of earlier versions, which scripts of schedulers still hold."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    from drivetrain.cli.main import command

    print("python -m runtime is called python -m drivetrain now; this command goes on under that name", file=sys.stderr)
    command()
