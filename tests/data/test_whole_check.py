"""Files as a whole: the steps of a check, and values that no program here can read."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import pytest
import small_graphs

from hpcgnn.data import plan_store, whole_check
from hpcgnn.data.graph_file import GraphFile
from hpcgnn.data.parts_file import PartsFile
from hpcgnn.errors import HpcgnnError


def test_there_is_a_step_for_each_part_and_for_each_of_its_plans(tmp_path: Path) -> None:
    path, graph, steps = tmp_path / "parts.h5", small_graphs.random_multigraph(), list[int]()
    small_graphs.write_parts(path, graph, small_graphs.random_parts(graph.num_nodes, 3), 3)
    plan_store.store_plans(path, ["pre", "post"])
    with PartsFile(path) as parts:
        whole_check.verify(parts, steps.append)
        assert sum(steps) == whole_check.count_steps(parts) == 3 * (1 + 2)


def test_numbers_too_wide_for_numpy_are_a_sentence(tmp_path: Path) -> None:
    path = shutil.copy(Path(__file__).parent / "graph-version-3.h5", tmp_path)
    with h5py.File(path, "r+") as file:
        wide = h5py.h5t.IEEE_F64LE.copy()
        wide.set_size(32)
        wide.set_precision(256)
        wide.set_fields(255, 224, 31, 0, 224)
        space = file["nodes/y"].id.get_space()
        del file["nodes/y"]
        h5py.h5d.create(file.id, b"nodes/y", wide, space)
    with pytest.raises(HpcgnnError, match="nodes/y holds values that no program here can read"):
        GraphFile(path)
