"""Functions that convert sources and read complete graph files, and write small npz files."""

import contextlib
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import GraphFile
from hpcgnn.data.schema import MASKS
from hpcgnn.sources.convert import ConvertOptions, convert


def read(path):
    """``(meta, edges, x, y, masks)``; edges (E, 2 or 3) in stored order, x dense."""
    with GraphFile(path) as file:
        meta, nodes = file.meta, file.meta.num_nodes
        indptr, indices = file.edges(0, nodes)
        assert indptr[0] == 0
        assert indptr[-1] == meta.num_edges == indices.size
        columns = [indices, np.repeat(np.arange(nodes), np.diff(indptr))]
        if meta.weighted:
            columns.append(file.of_edges("weight", 0, meta.num_edges))
        x = file.features(0, nodes)
        masks = {name: file.mask(name, 0, nodes) for name in MASKS} if meta.has_masks else None
        return meta, np.stack(columns, 1), x.toarray() if sp.issparse(x) else x, file.labels(0, nodes), masks


def converted(source, folder, **options):
    """The content of the converted source, as :func:`read` gives it."""
    convert(source, folder / "out.h5", ConvertOptions(force=True, **options))
    return read(folder / "out.h5")


def check_refused(source, folder, sentence, **options):
    """Check that a conversion ends in one sentence with this regular expression, and leaves nothing in the folder. Returns the
    sentence.
    """
    before = sorted(folder.iterdir())
    with pytest.raises(HpcgnnError, match=sentence) as error:
        convert(source, folder / "refused.h5", ConvertOptions(**options))
    assert "\n" not in str(error.value)
    assert sorted(folder.iterdir()) == before
    return str(error.value)


def notes_of(source, folder, **options):
    """The notes of a conversion."""
    return convert(source, folder / "out.h5", ConvertOptions(force=True, **options)).notes


@contextlib.contextmanager
def memory_below(most):
    """Check that Python's memory never grows by as many bytes."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def check_same(content, x, y, masks):
    """Check the values of nodes in the content of a graph file."""
    assert np.array_equal(content[2], x)
    assert np.array_equal(content[3], y)
    assert all(np.array_equal(content[4][name], masks[name]) for name in MASKS)


def pairs(edges):
    return sorted(map(tuple, edges[:, :2].astype(int).tolist()))


def weighted(edges):
    return sorted(map(tuple, edges.tolist()))


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


class RunsCode:
    """An object whose pickle calls a function that creates a file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return exec, (f"open({str(self.marker)!r}, 'w').close()",)
