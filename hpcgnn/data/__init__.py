"""Graphs on disk: sources, generators, ``graph.h5`` and ``parts.h5``."""
