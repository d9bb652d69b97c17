"""``pyg:NAME``: a data set of PyTorch Geometric, through its own loader, so that files downloaded before are used.

``NAME`` is a class of ``torch_geometric.datasets`` (Reddit, Flickr), a class and one of its graphs as ``CLASS/NAME``
(``WikipediaNetwork/chameleon``), or a well-known graph of such a class (Cora). ``root`` is the argument of the class.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from hpcgnn.base.errors import HpcgnnError, quoted
from hpcgnn.sources.base import SOURCES, ArraySource, Source, Spec
from hpcgnn.sources.loaders import default_root, loading, warnings_off
from hpcgnn.sources.node_values import read_masks
from hpcgnn.sources.typed_nodes import hetero_source

_FAMILIES = {
    "Planetoid": ("Cora", "CiteSeer", "PubMed"),
    "Amazon": ("Computers", "Photo"),
    "Coauthor": ("CS", "Physics"),
}
# PyG returns sparse features as dense ones. Below this share of nonzeros they are stored sparse again.
_SPARSE_SHARE = 0.1


@SOURCES.register("pyg")
def _open_pyg(spec: Spec, folder: Path) -> Source:
    root_text, split = spec.take("root"), spec.take_split()
    try:
        with warnings_off():
            from torch_geometric import datasets
    except ImportError as error:
        raise HpcgnnError(f"{spec.text} needs PyTorch Geometric ({error}): pip install 'hpcgnn[pyg]'") from error
    family, arguments = _resolve(spec, datasets)
    root = Path(root_text).expanduser() if root_text else default_root("pyg") / ("" if arguments else family)
    with _writable_root(root) as usable, loading(spec.text, root), _without_remains(root):
        loaded = getattr(datasets, family)(str(usable), *arguments)
        if len(loaded) != 1:
            raise HpcgnnError(f"{spec.text} holds {len(loaded)} graphs, but hpcgnn trains on one")
        return data_source(loaded[0], spec.text, split)


def _resolve(spec: Spec, datasets: Any) -> tuple[str, tuple[str, ...]]:
    """The name of the class in ``torch_geometric.datasets``, and its arguments after the root."""
    family, slash, name = spec.name.partition("/")
    if not slash:
        for candidate, names in _FAMILIES.items():
            if known := [each for each in names if each.lower() == spec.name.lower()]:
                return candidate, (known[0],)
    if not inspect.isclass(getattr(datasets, family, None)):
        raise HpcgnnError(
            f"{spec.text}: PyTorch Geometric has no data set {spec.name!r}; write a class of torch_geometric.datasets, "
            "such as Reddit, or CLASS/NAME, such as WikipediaNetwork/chameleon"
        )
    return family, (name,) if slash else ()


def data_source(data: Any, where: str, split: int | None = None) -> ArraySource:
    """The source of a ``torch_geometric.data.Data`` or ``HeteroData``, or of any object that has the attributes of the first:
    tensors on any device, or arrays. ``torch_geometric`` is not needed. Other attributes are left out. split: the number of the
    split of masks (N, splits)."""
    if hasattr(data, "node_types") and hasattr(data, "edge_types"):
        return hetero_source(
            data, where, lambda value, name, of: (_features if name == "x" else _array)(value, name, of), split
        )
    if getattr(data, "edge_index", None) is None:
        raise HpcgnnError(f"{where} is no graph: it has neither edge_index nor types of nodes and edges")

    def get(name: str) -> np.ndarray | None:
        return _array(getattr(data, name, None), name, where)

    edge_index, x = get("edge_index"), getattr(data, "x", None)
    num_nodes = _num_nodes(data, edge_index, where)
    masks, notes = read_masks(get, num_nodes, split, where)
    features, y = None if x is None else _features(x, "x", where), get("y")
    return ArraySource(
        where, num_nodes, edge_index, weight=get("edge_weight"), edge_type=get("edge_type"), edge_attr=get("edge_attr"),
        edge_split=get("edge_split"), x=features, y=y, masks=masks, notes=notes,
    )  # fmt: skip


def _array(value: Any, name: str, where: str) -> np.ndarray | None:
    """A tensor as an array on the host; bfloat16, which numpy does not have, becomes float32, which is exact."""
    if value is None:
        return None
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        if getattr(value, "layout", None) is not None and "strided" not in str(value.layout):
            raise HpcgnnError(f"{where}: {name} is a sparse tensor: give it as a dense one, .to_dense()")
        return value.resolve_neg().numpy() if hasattr(value, "resolve_neg") else np.asarray(value)
    return np.asarray(value)


def _num_nodes(data: Any, edge_index: Any, where: str) -> int:
    """The attribute ``num_nodes``, or else the number of rows of x, or else the largest id plus 1."""
    count, x = getattr(data, "num_nodes", None), getattr(data, "x", None)
    if count is None and x is not None and hasattr(x, "shape"):
        count = x.shape[0]
    if count is None:
        count = int(edge_index.max()) + 1 if edge_index.size else 0
    if isinstance(count, bool) or not hasattr(count, "__index__"):
        raise HpcgnnError(f"{where}: num_nodes is {quoted(count)}, but it should be a whole number")
    return int(count)


def _features(x: Any, name: str, where: str) -> np.ndarray | sp.csr_matrix:
    """x as a CSR matrix if it is sparse, in any of torch's or SciPy's layouts, or has few nonzeros, else as an array."""
    if sp.issparse(x):
        return sp.csr_matrix(x)
    if hasattr(x, "to_scipy"):
        return x.to_scipy(layout="csr")
    if getattr(x, "is_sparse", False) or "sparse" in str(getattr(x, "layout", "")):
        coo = x.detach().cpu().to_sparse_coo().coalesce()
        rows, columns = coo.indices().numpy()
        return sp.csr_matrix((coo.values().float().numpy(), (rows, columns)), shape=tuple(coo.shape))
    dense = _array(x, name, where)
    assert dense is not None
    is_sparse = dense.ndim == 2 and dense.size and np.count_nonzero(dense) < _SPARSE_SHARE * dense.size
    return sp.csr_matrix(dense) if is_sparse else dense


@contextlib.contextmanager
def _without_remains(root: Path) -> Iterator[None]:
    """Remove the folders ``processed`` that a loader has made before it failed. The downloaded files stay."""

    def processed() -> set[Path]:
        return {path for depth in ("", "*/", "*/*/") for path in root.glob(f"{depth}processed")}

    before = processed()
    try:
        yield
    except BaseException:
        for folder in processed() - before:
            shutil.rmtree(folder, ignore_errors=True)
        raise


@contextlib.contextmanager
def _writable_root(root: Path) -> Iterator[Path]:
    """Yield ``root``, or, if it is read-only, a temporary folder with links to its files, because PyG writes beside them."""
    # A superuser may write anywhere, but a folder that its owner has made read-only must stay as it is.
    folders = [path for path in (root, *root.iterdir()) if path.is_dir()] if root.is_dir() else []
    if all(os.access(folder, os.W_OK) and folder.stat().st_mode & 0o222 for folder in folders):
        yield root
        return
    with tempfile.TemporaryDirectory(prefix="hpcgnn-pyg-") as mirror:
        for folder, _, files in os.walk(root, followlinks=True):
            copy = Path(mirror, os.path.relpath(folder, root))
            copy.mkdir(exist_ok=True)
            for name in files:
                (copy / name).symlink_to(Path(folder, name).resolve())
        yield Path(mirror)
