"""`python -m runtime`."""

import sys

from runtime.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
