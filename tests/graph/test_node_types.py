"""Types of nodes on a rank: nodes, features and edges by type are those of PyG's ``HeteroData``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_graphs
import torch

from hpcgnn import HpcgnnError
from hpcgnn.graph.node_types import FeaturesByType
from hpcgnn.world.thread_world import on_threads

ARRAYS = small_graphs.with_types()
DATA = small_graphs.hetero_data(ARRAYS)
FIRST = dict(zip(DATA.node_types, (0, 30, 50, 51), strict=True))


def parts_of(tmp_path: Path, ranks: int) -> Path:
    """The graph in parts, of which the last has no node of type paper, and one has no node if there are more than two."""
    part = small_graphs.random_parts(ARRAYS.num_nodes, ranks, empty=1 if ranks > 2 else None)
    part[:30][part[:30] == ranks - 1] = 0
    small_graphs.write_parts(tmp_path / "parts.h5", ARRAYS, part, ranks)
    return tmp_path / "parts.h5"


@pytest.mark.parametrize(("ranks", "order"), [(1, "none"), (4, "degree")])
def test_ranks_together_have_the_values_of_each_type(tmp_path: Path, ranks: int, order: str) -> None:
    import hpcgnn

    path = parts_of(tmp_path, ranks)

    def program(world: Any) -> Any:
        graph = hpcgnn.load(path, world).reordered(order)
        types, values = graph.nodes_by_type, []
        for name, x in graph.x_dict.items():
            ids = graph.of_type(name, graph.original_ids) - FIRST[name]
            assert torch.equal(x, DATA[name].x[ids])
            values += [(name, each) for each in ids.tolist()]
        assert torch.equal(graph.of_type("paper", graph.y), DATA["paper"].y[graph.of_type("paper", graph.original_ids)])
        ids = torch.cat((graph.original_ids, graph.halo_ids))
        edges = {}
        attr = graph.edge_attr_dict
        for key, index in graph.edge_index_dict.items():
            ends = []
            for end, local in zip((key[0], key[2]), index, strict=True):
                kind = graph.node_type_number(end)
                here = torch.nonzero(types.type == kind)[:, 0]  # owned ones first
                ends.append(ids[here][local] - FIRST[end])
            edges[key] = list(zip(*(each.tolist() for each in ends), *(attr[key].T.tolist() if key in attr else ()),
                                  strict=True))  # fmt: skip
        return values, edges

    found = on_threads(ranks, program)
    wanted = [(name, node) for name in ("paper", "author") for node in range(DATA[name].num_nodes)]
    assert sorted(each for values, _ in found for each in values) == sorted(wanted)
    for key in DATA.edge_types:
        store = DATA[key]
        columns = [*store.edge_index.tolist(), *(store.edge_attr.T.tolist() if "edge_attr" in store else ())]
        assert sorted(edge for _, edges in found for edge in edges[key]) == sorted(zip(*columns, strict=True))


@pytest.mark.parametrize(("ranks", "order"), [(2, "none"), (3, "degree"), (5, "degree")])
def test_features_by_type_are_those_of_the_whole_graph(tmp_path: Path, ranks: int, order: str) -> None:
    """Also on another number of ranks than of parts, so that the nodes of a type are several ranges of a rank's nodes."""
    import hpcgnn

    path, x = parts_of(tmp_path, 3), torch.from_numpy(ARRAYS.x.toarray())

    def program(world: Any) -> list[int]:
        graph = hpcgnn.load(path, world, any_ranks=True).reordered(order)
        assert isinstance(graph.features, FeaturesByType)
        assert torch.equal(graph.x.to_dense(), x[graph.original_ids])
        first = np.concatenate(([0], np.cumsum([each.columns for each in ARRAYS.node_types])))
        for kind, (rows, place, block) in enumerate(
            zip(graph.features.rows, graph.features.places, graph.features.blocks, strict=True)
        ):
            assert torch.equal(torch.arange(graph.num_nodes)[place], rows)
            assert torch.equal(block, x[graph.original_ids[rows], first[kind] : first[kind + 1]])
        assert all(torch.equal(each, DATA[name].x[graph.of_type(name, graph.original_ids) - FIRST[name]])
                   for name, each in graph.x_dict.items())  # fmt: skip
        return graph.original_ids.tolist()

    assert sorted(node for nodes in on_threads(ranks, program) for node in nodes) == list(range(60))


def test_an_unknown_type_is_told(tmp_path: Path) -> None:
    import hpcgnn

    path = parts_of(tmp_path, 1)
    with pytest.raises(HpcgnnError, match="no type of nodes 'word': it has paper, author, venue, term"):
        on_threads(1, lambda world: hpcgnn.load(path, world).of_type("word", torch.zeros(60)))
