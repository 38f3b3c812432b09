"""Drivetrain: fits a training job to the machine it lands on, and proves it."""

__version__ = "0.1.0"
