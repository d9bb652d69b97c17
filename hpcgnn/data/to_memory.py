"""Conversion of a whole ``graph.h5`` to a graph of another library, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcgnn.base.arguments import check_path, check_type
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import GraphFile
from hpcgnn.data.schema import MASKS, GraphMeta

if TYPE_CHECKING:
    import scipy.sparse as sp
    import torch


def to_pyg(path: str | Path, *, sparse: bool = False) -> Any:
    """Read ``graph.h5`` as a ``torch_geometric.data.Data``. Not collective: one process holds the whole graph.

    For comparisons and inspection. It takes O(N F + E) memory for N nodes with F features and E edges, or O(N + nonzeros + E)
    with ``sparse``.

    Args:
        path: a file made by ``hpcgnn convert``, ``from_pyg`` or ``from_networkx``.
        sparse: return features that are stored sparse as a CSR tensor, which not all layers of PyG accept.

    Returns:
        A graph with ``edge_index`` (2, E) int64, sorted by destination and then by source, ``num_nodes``, and, if the file
        has them, ``x`` (N, F) float32, ``y`` (N,) int64, (N, C) uint8, or (N,) or (N, K) float32 targets, ``edge_weight`` (E,)
        float32, ``edge_type`` (E,) int64, ``edge_attr`` (E, D) float32, and the three masks (N,) bool. If its nodes have types, a
        ``torch_geometric.data.HeteroData`` with the same attributes of each type; edges keep this order in each type.

    Raises:
        HpcgnnError: for a missing or damaged file, and if torch_geometric is not installed.
    """
    check_path("path", path)
    check_type("sparse", sparse, bool)
    try:
        from torch_geometric.data import Data
    except ImportError as error:
        raise HpcgnnError(f"to_pyg needs PyTorch Geometric ({error}): pip install 'hpcgnn[pyg]'") from error
    values, meta = _tensors(Path(path), sparse=sparse)
    return _hetero_data(values, meta) if meta.node_types else Data(num_nodes=meta.num_nodes, **values)


def _hetero_data(values: dict[str, Any], meta: GraphMeta) -> Any:
    """The ``HeteroData`` of a graph whose nodes have types, from its tensors."""
    from torch_geometric.data import HeteroData

    data = HeteroData()
    for part in _by_type(values, meta):
        for key, own in part.items():
            data[key].update(own)
    return data


def _by_type(
    values: dict[str, Any], meta: GraphMeta
) -> tuple[dict[str, dict[str, Any]], dict[tuple[str, str, str], dict[str, torch.Tensor]]]:
    """The tensors, by PyG's names, of each type of nodes, with ``num_nodes``, and of each type of edges."""
    import torch

    x, nodes, edges = values.pop("x", None), {}, {}
    x = x.to_dense() if isinstance(x, torch.Tensor) and x.layout == torch.sparse_csr else x
    of_edges = {name: values.pop(name) for name in ("edge_index", *_OF_EDGES) if name in values}
    edge_type, first = of_edges.pop("edge_type"), meta.node_type_offsets
    for number, kind in enumerate(meta.node_types):
        rows, columns = slice(*first[number : number + 2]), slice(*meta.column_offsets[number : number + 2])
        own: dict[str, Any] = {"num_nodes": kind.count}
        if x is not None and kind.columns:
            own["x"] = x[number] if isinstance(x, list) else x[rows, columns].contiguous()
        for name, value in values.items() if kind.classes else ():
            own[name] = value[rows, : kind.classes] if value.ndim == 2 else value[rows]
        nodes[kind.name] = own
    for number, (each, names) in enumerate(zip(meta.edge_types, meta.edge_type_names, strict=True)):
        there = edge_type == number
        ends = torch.tensor([[first[each.source]], [first[each.destination]]])
        edges[names] = {"edge_index": of_edges["edge_index"][:, there] - ends}
        for name in ("edge_weight", "edge_split"):
            if name in of_edges:
                edges[names][name] = of_edges[name][there]
        if each.columns:
            edges[names]["edge_attr"] = of_edges["edge_attr"][there, : each.columns]
    return nodes, edges


def to_dgl(path: str | Path) -> Any:
    """Read ``graph.h5`` as a ``dgl.DGLGraph``. Not collective: one process holds the whole graph.

    It takes O(N F + E) memory for N nodes with F features and E edges. Features are dense, because DGL has no sparse ones.

    Args:
        path: a file made by ``hpcgnn convert``, ``from_pyg`` or ``from_networkx``.

    Returns:
        A graph whose edges are sorted by destination and then by source. If the file has them, ``ndata`` holds ``feat``,
        ``label``, ``train_mask``, ``val_mask`` and ``test_mask``, and ``edata`` holds ``weight``, ``type``, ``feat`` and
        ``split`` (0 training, 1 validation, 2 test links, 3 the reverse of one of the last two).
        If its nodes have types, a heterograph with the same values of each type.

    Raises:
        HpcgnnError: for a missing or damaged file, and if DGL is not installed or lacks a library for this version of torch.
    """
    check_path("path", path)
    try:
        import dgl
    except (ImportError, OSError) as error:  # OSError: DGL has no library for this version of torch
        raise HpcgnnError(
            f"to_dgl needs DGL, with a version of torch that it was built for ({error}): install dgl, "
            "https://www.dgl.ai/pages/start.html"
        ) from error
    values, meta = _tensors(Path(path), sparse=False)
    if not meta.node_types:
        of_edges = {name: values.pop(name) for name in _OF_EDGES if name in values}
        graph = dgl.graph((*values.pop("edge_index"),), num_nodes=meta.num_nodes)
        _fill(graph.ndata, values)
        _fill(graph.edata, of_edges)
        return graph
    nodes, edges = _by_type(values, meta)
    counts = {name: own.pop("num_nodes") for name, own in nodes.items()}
    graph = dgl.heterograph({key: (*own.pop("edge_index"),) for key, own in edges.items()}, num_nodes_dict=counts)
    for frames, part in ((graph.nodes, nodes), (graph.edges, edges)):
        for key, own in part.items():
            _fill(frames[key].data, own)
    return graph


_OF_EDGES = {"edge_weight": "weight", "edge_type": "type", "edge_attr": "feat", "edge_split": "split"}
_THEIRS = {"x": "feat", "y": "label"} | _OF_EDGES


def _fill(frame: Any, values: dict[str, torch.Tensor]) -> None:
    """Put tensors by PyG's names into a frame of DGL, whose names are others."""
    for name, tensor in values.items():
        frame[_THEIRS.get(name, name)] = tensor


def _tensors(path: Path, *, sparse: bool) -> tuple[dict[str, Any], GraphMeta]:
    """The file's arrays by PyG's names, and its counts; every value and checksum is checked."""
    import torch

    with GraphFile(path) as file:
        nodes, edges = file.meta.num_nodes, file.meta.num_edges
        file.verify(range(file.num_slabs))
        if file.meta.node_types:
            file.check_types(0, nodes, file.meta.type_runs(np.arange(nodes), 0))
        indptr, indices = file.edges(0, nodes)
        arrays = {
            "edge_index": np.stack((indices, np.repeat(np.arange(nodes), np.diff(indptr)))),
            "y": file.labels(0, nodes),
            **{name: file.of_edges(name.removeprefix("edge_"), 0, edges) for name in _OF_EDGES},
            **{name: file.mask(name, 0, nodes) for name in MASKS},
        }
        x = file.features(0, nodes)
    tensors: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items() if array is not None}
    tensors |= {name: value.long() for name, value in tensors.items() if name == "edge_type"}
    if isinstance(x, list):  # a matrix for each type of nodes
        tensors["x"] = [torch.from_numpy(each.x) for each in x]
    elif x is not None:
        tensors["x"] = torch.from_numpy(x) if isinstance(x, np.ndarray) else _from_csr(x, sparse=sparse)
    return tensors, file.meta


def _from_csr(x: sp.csr_matrix, *, sparse: bool) -> torch.Tensor:
    import torch

    if not sparse:
        return torch.from_numpy(x.toarray())
    indptr, indices = (torch.from_numpy(part.astype(np.int64)) for part in (x.indptr, x.indices))
    return torch.sparse_csr_tensor(indptr, indices, torch.from_numpy(x.data), size=x.shape, check_invariants=True)
