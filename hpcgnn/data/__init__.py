"""Graphs on disk: ``graph.h5``, ``parts.h5`` and stored plans."""
