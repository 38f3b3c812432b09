"""`python -m runtime`."""

from runtime.cli.main import command

if __name__ == "__main__":
    command()
