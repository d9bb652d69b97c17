"""Fixtures that the tests of jobs share."""

from __future__ import annotations

import subprocess
import sys

import pytest
import small_graphs


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A random graph in two parts, with a stored plan."""
    path = tmp_path_factory.mktemp("graph") / "parts.h5"
    graph = small_graphs.random_multigraph(nodes=300, edges=3000)
    small_graphs.write_parts(path, graph, small_graphs.random_parts(300, 2), 2)
    subprocess.run([sys.executable, "-m", "hpcgnn", "plan", str(path), "--quiet"], check=True)
    return path
