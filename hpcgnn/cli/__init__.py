"""The ``hpcgnn`` command: parse, delegate, show."""
