"""The ``hpcgnn`` command: its modules parse arguments, call the package, and print results."""
