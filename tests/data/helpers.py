"""Functions that read complete graph files, and write small npz files."""

import numpy as np
import scipy.sparse as sp

from hpcgnn.data.graph_file import MASKS, GraphFile


def read(path):
    """``(meta, edges, x, y, masks)``; edges (E, 2 or 3) in stored order, x dense."""
    with GraphFile(path) as file:
        meta, nodes = file.meta, file.meta.num_nodes
        indptr, indices = file.edges(0, nodes)
        assert indptr[0] == 0
        assert indptr[-1] == meta.num_edges == indices.size
        columns = [indices, np.repeat(np.arange(nodes), np.diff(indptr))]
        if meta.weighted:
            columns.append(file.weights(0, meta.num_edges))
        x = file.features(0, nodes)
        masks = {name: file.mask(name, 0, nodes) for name in MASKS} if meta.has_masks else None
        return meta, np.stack(columns, 1), x.toarray() if sp.issparse(x) else x, file.labels(0, nodes), masks


def pairs(edges):
    return sorted(map(tuple, edges[:, :2].astype(int).tolist()))


def small_graph(**changes):
    """Arrays of a valid graph of 6 nodes; ``None`` removes one."""
    arrays = {
        "num_nodes": np.int64(6),
        "edge_index": np.array([[0, 1, 2, 3, 4, 5], [1, 0, 3, 2, 5, 4]], np.int32),
        "x": np.arange(18, dtype=np.float32).reshape(6, 3),
        "y": np.array([0, 1, 2, 0, 1, -1], np.int32),
        "train_mask": np.array([1, 1, 1, 0, 0, 0], bool),
        "val_mask": np.array([0, 0, 0, 1, 0, 0], bool),
        "test_mask": np.array([0, 0, 0, 0, 1, 0], bool),
    }
    arrays |= changes
    return {name: array for name, array in arrays.items() if array is not None}


def save(path, **changes):
    np.savez(path, **small_graph(**changes))
    return f"npz:{path}"
