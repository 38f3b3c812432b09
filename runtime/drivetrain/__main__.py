"""`python -m drivetrain`."""

from drivetrain.cli.main import command

if __name__ == "__main__":
    command()
