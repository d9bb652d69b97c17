"""The measurements of ``hpcgnn bench pyg``, ``dgl`` and ``sar``: the graph as arrays, and the program that trains on it in the
library's own environment (``peer_program.py``)."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.version import __version__
from hpcgnn.data.graph_file import GraphFile
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.lab.bench import peer_program
from hpcgnn.lab.bench.names import DGL, PYG, SAR, PeerSettings
from hpcgnn.lab.bench.peer_program import Problem

# Module, name, and the way to install each library.
_LIBRARIES = {
    PYG: ("torch_geometric", "PyG", "pip install torch-geometric"),
    DGL: ("dgl", "DGL", "pip install dgl, or name the Python of another environment with --python"),
    SAR: ("sar", "SAR", "clone its repository, and name the folder with --source"),
}
_SAID = 400  # most characters of an error


def run(path: Path, settings: PeerSettings, python: str = "", source: Path | None = None) -> dict[str, Any]:
    """Train on ``graph.h5``; return the figures for a study's record. python: that of the library's environment, this one by
    default. source: a folder to import from. Raises :class:`HpcgnnError` without the library, for graphs without dense features
    or training nodes, and if the training fails."""
    python, paths = python or sys.executable, [str(source.resolve())] if source else []
    _require(python, paths, settings.library)
    with tempfile.TemporaryDirectory(prefix="hpcgnn-peer-") as folder:
        graph, job = Path(folder, "graph.npz"), Path(folder, "job.json")
        counts = write_arrays(path, settings, graph)
        paths_of = {name: str(Path(folder, name)) for name in ("parts", "address")}
        facts = {"graph": str(graph), **paths_of, **counts, "settings": asdict(settings)}
        line = [python, peer_program.__file__, str(job)]
        for step in ("divide", "train") if settings.library == SAR else ("train",):
            job.write_text(json.dumps(facts | {"step": step}))
            found = _told(_launched(line, settings) if step == "train" else line, paths, settings)
    return found | {"versions": {"hpcgnn": __version__} | found["versions"]}


def name_of(library: str) -> str:
    """The library's name in sentences."""
    return _LIBRARIES[library][1]


def write_arrays(path: Path, settings: PeerSettings, target: Path) -> dict[str, int]:
    """Write the arrays of ``graph.h5`` that the program reads; return the number of classes and of edge types. Only GCN uses
    edge weights, as in `hpcgnn train`, and R-GCN types."""
    with GraphFile(path) as file:
        nodes, meta = file.meta.num_nodes, file.meta
        if meta.x_nnz is not None or not meta.num_features:
            raise _no_features(path)
        y = file.labels(0, nodes)
        known = _known(path, y)
        masks = {part: file.mask(f"{part}_mask", 0, nodes) for part in peer_program.SETS}
        sets = {
            part: np.flatnonzero(known if mask is None else mask.astype(bool) & known) for part, mask in masks.items()
        }
        if masks["train"] is None or not sets["train"].size:
            raise _nothing_to_learn(path)
        indptr, sources = file.edges(0, nodes)
        arrays = {"x": file.features(0, nodes), **sets}
        arrays["y"] = y.astype(np.int64 if y.ndim == 1 else np.float32)
        weights = file.weights(0, sources.size) if settings.model == "gcn" else None
        if weights is not None:
            if settings.library != PYG:
                raise HpcgnnError("DGL's GCN is measured without edge weights: convert the graph without them")
            arrays["edge_weight"] = weights
        if settings.model == "rgcn":
            if not meta.num_edge_types:
                raise HpcgnnError(f"{path} has no types of edges, which R-GCN needs: choose another model")
            arrays["edge_type"] = file.edge_types(0, sources.size).astype(np.int64)
    arrays["edge_index"] = edges = np.stack((sources, np.repeat(np.arange(nodes), np.diff(indptr))))
    if settings.library == SAR and (np.diff(edges) == 0).all(axis=0).any():  # they are in order
        raise HpcgnnError(
            f"{path} has parallel edges, on which DGL's METIS fails: convert the graph with --drop-duplicates"
        )
    counts = {"classes": meta.num_classes, "types": meta.num_edge_types}
    np.savez(target, **arrays, **counts)
    return counts


def problem_of(graph: LocalGraph) -> Problem:
    """PyG's problem of a rank that owns all nodes, without edge weights. Raises :class:`HpcgnnError` as :func:`run`."""
    x, y, mask = graph.features, graph.y, graph.masks.get("train_mask")
    if not isinstance(x, torch.Tensor):
        raise _no_features(graph.path)
    if mask is None or y is None:
        raise _nothing_to_learn(graph.path)
    known = _known(graph.path, y)
    y = y.long() if y.dim() == 1 else y.float()
    learned = torch.nonzero(mask.bool() & known).flatten()
    return Problem(x, (graph.edge_index,), y, {"train": learned}, graph.meta.num_classes)


def _known(path: Path, y: Any) -> Any:
    """(n,) bool nodes with known labels, an array or a tensor as y."""
    if y is None:
        raise _nothing_to_learn(path)
    return y >= 0 if y.ndim == 1 else y.any(axis=1)


def _no_features(path: Path) -> HpcgnnError:
    said = "has no dense features, which these layers need: convert the graph again with --features dense"
    return HpcgnnError(f"{path} {said}")


def _nothing_to_learn(path: Path) -> HpcgnnError:
    return HpcgnnError(f"{path} has no labels or no training nodes: convert a graph with labels, and with --split")


# -- the program of the peer -------------------------------------------------------------------------------------------


def _launched(line: Sequence[str], settings: PeerSettings) -> list[str]:
    """The command line, on ranks if the library has several."""
    if settings.library != SAR:
        return [*line]
    words = [sys.executable, "-m", "hpcgnn", "launch", "-n", str(settings.ranks), "-t", str(settings.threads)]
    if settings.hosts:
        words += ["--hosts", str(settings.hosts), *(["--rate", settings.rate] if settings.rate else [])]
    return [*words, "--", *line]


def require(library: str = PYG) -> None:
    """Raise :class:`HpcgnnError` if this environment does not have the library."""
    _require(sys.executable, [], library)


def _require(python: str, paths: Sequence[str], library: str) -> None:
    module, name, how = _LIBRARIES[library]
    try:
        done = subprocess.run(
            [python, "-c", f"import {module}"], env=_environment(paths), capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise HpcgnnError(f"cannot run {python}, the Python of {name}: {error.strerror}") from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise HpcgnnError(f"{name} cannot be imported by {python} ({said[:_SAID]}): {how}")


def _environment(paths: Sequence[str]) -> dict[str, str]:
    before = [each for each in [os.environ.get("PYTHONPATH", "")] if each]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, *before]), "DGLBACKEND": "pytorch"}


def _told(line: Sequence[str], paths: Sequence[str], settings: PeerSettings) -> dict[str, Any]:
    """Run a command line; return the JSON object that it prints."""
    done = subprocess.run(
        line, env=_environment(paths), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    texts = [text for text in done.stdout.splitlines() if text.startswith("{")]
    if done.returncode or not texts:
        said = [text.strip() for text in (done.stderr + done.stdout).splitlines() if text.strip()] or [
            "it printed nothing"
        ]
        wrong = next((text for text in reversed(said) if "Error" in text), said[-1])
        raise HpcgnnError(f"{name_of(settings.library)} failed ({wrong[:_SAID]}): {shlex.join(line)}")
    found: dict[str, Any] = json.loads(texts[-1])
    return found
