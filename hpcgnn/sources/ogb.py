"""``ogb:NAME``: a node data set of the Open Graph Benchmark (ogbn-arxiv, ogbn-products, ...), through its own loader.

``root`` is the folder that ``NodePropPredDataset`` takes as its argument. ``?download=yes`` answers its question about a large
download, for jobs without a terminal. The published split is kept. Two data sets are read in slabs from their raw files instead,
without ogb: :mod:`hpcgnn.sources.ogb_raw`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.sources.base import SOURCES, ArraySource, Source
from hpcgnn.sources.loaders import default_root, loading, warnings_off
from hpcgnn.sources.masks import mask_of
from hpcgnn.sources.ogb_raw import open_mag, open_papers
from hpcgnn.sources.spec import Spec

_TORCH_SWITCH = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
_IN_SLABS: dict[str, Callable[[str, Path], Source]] = {
    "ogbn-papers100m": open_papers,
    "mag240m": open_mag,
    "mag240m-lsc": open_mag,
}
_SPLIT_NAMES = {"train_mask": "train", "val_mask": "valid", "test_mask": "test"}


@SOURCES.register("ogb")
def open_ogb(spec: Spec, folder: Path) -> Source:
    """See the module's text; needs ``ogb``."""
    root_text = spec.take("root")
    root = Path(root_text).expanduser() if root_text else default_root("ogb")
    if opener := _IN_SLABS.get(spec.name.lower()):
        return opener(spec.text, root)
    download = spec.take("download", "no")
    if download not in ("yes", "no"):
        raise HpcgnnError(f"{spec.text}: download={download} should be yes or no")
    try:
        with warnings_off():
            from ogb.nodeproppred import NodePropPredDataset
    except ImportError as error:
        raise HpcgnnError(f"{spec.text} needs the ogb package ({error}): pip install 'hpcgnn[ogb]'") from error
    with loading(spec.text, root, may_download=download == "yes"), _whole_pickles():
        dataset = NodePropPredDataset(spec.name, str(root))
        graph, labels = dataset[0]
        if dataset.is_hetero:
            raise HpcgnnError(
                f"{spec.text} has several kinds of nodes: hpcgnn trains on graphs with one kind of nodes and edges"
            )
        return _from_ogb(graph, labels, dataset.get_idx_split(), spec.text)


def _from_ogb(graph: dict[str, Any], labels: np.ndarray, split: dict[str, Any], where: str) -> ArraySource:
    num_nodes = int(graph["num_nodes"])
    masks = {mask: mask_of(np.asarray(split[name]), name, num_nodes, where) for mask, name in _SPLIT_NAMES.items()}
    notes = [] if graph.get("edge_feat") is None else ["edge features are not read"]
    return ArraySource(where, num_nodes, graph["edge_index"], x=graph["node_feat"], y=labels, masks=masks, notes=notes)


@contextlib.contextmanager
def _whole_pickles() -> Iterator[None]:
    """Let torch 2.6 or later read ogb's cache, a pickle that it refuses by default; :func:`loading` refuses pickles with code."""
    before = os.environ.get(_TORCH_SWITCH)
    os.environ[_TORCH_SWITCH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_TORCH_SWITCH]
        else:
            os.environ[_TORCH_SWITCH] = before
