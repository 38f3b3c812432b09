"""Small built-in networks, and adapters for libraries and the user's own file."""
