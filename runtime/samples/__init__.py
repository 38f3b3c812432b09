"""Sample data: learnable, of realistic shape, the same for the same seed."""
