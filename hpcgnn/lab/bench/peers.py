"""The measurements of ``hpcgnn bench pyg``, ``dgl`` and ``sar``: the graph as arrays, and the program that trains on it in the
library's own environment (``peer_program.py``)."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.version import __version__
from hpcgnn.data.graph_file import GraphFile
from hpcgnn.data.schema import REGRESSION
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.lab.bench import peer_program
from hpcgnn.lab.bench.names import DGL, PYG, SAR, PeerSettings
from hpcgnn.lab.bench.peer_program import Problem
from hpcgnn.lab.virtual.network import LINK
from hpcgnn.launch import mpiexec
from hpcgnn.world.devices import choose_device
from hpcgnn.world.thread_world import one_rank

# Module, name, and the way to install each library.
_LIBRARIES = {
    PYG: ("torch_geometric", "PyG", "pip install torch-geometric"),
    DGL: ("dgl", "DGL", "pip install dgl, or name the Python of another environment with --python"),
    SAR: ("sar", "SAR", "clone its repository, and name the folder with --source"),
}
_SAID = 400  # most characters of an error
_GRACE_SECONDS = 15.0  # launchers give ranks some seconds from SIGTERM to SIGKILL


def run(path: Path, settings: PeerSettings, python: str = "", source: Path | None = None) -> dict[str, Any]:
    """Train on ``graph.h5``; return the figures for a study's record. python: that of the library's environment, this one by
    default. source: a checkout to import from. Raises :class:`HpcgnnError` without the library, for graphs without dense features
    or training nodes, and if the training fails."""
    device = choose_device(one_rank(), settings.device)
    settings = replace(settings, device=str(device.torch_device))
    environment = _environment(python, source, settings)
    python = python or sys.executable
    _require(python, environment, settings.library)
    with tempfile.TemporaryDirectory(prefix="hpcgnn-peer-") as folder:
        graph, job, program = (Path(folder, name) for name in ("graph.npz", "job.json", "peer_program.py"))
        counts = write_arrays(path, settings, graph)
        shutil.copy(peer_program.__file__, program)  # the modules beside it must not stand before those of the library
        paths = {name: str(Path(folder, name)) for name in ("parts", "address")}
        facts = {"graph": str(graph), **paths, **counts, "settings": asdict(settings)}
        line = [python, str(program), str(job)]
        for step in ("divide", "train") if settings.library == SAR else ("train",):
            job.write_text(json.dumps(facts | {"step": step}))
            found = _told(_launched(line, settings) if step == "train" else line, environment, settings)
    versions = {"hpcgnn": __version__} | found["versions"] | _commit_of(source)
    return found | {"versions": versions, "device": device.name}


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
        y, masks = file.labels(0, nodes), [file.mask(f"{part}_mask", 0, nodes) for part in peer_program.SETS]
        if y is None or meta.task == REGRESSION or any(mask is None or not mask.any() for mask in masks[:1]):
            raise _nothing_to_learn(path)
        known = y >= 0 if y.ndim == 1 else np.ones(nodes, bool)
        sets = (np.flatnonzero(mask.astype(bool) & known) for mask in masks if mask is not None)
        arrays = {"x": file.features(0, nodes), "y": y.astype(np.int64 if y.ndim == 1 else np.float32)}
        arrays |= dict(zip(peer_program.SETS, sets, strict=True))
        indptr, sources = file.edges(0, nodes)
        if settings.model == "gcn" and (weights := file.of_edges("weight", 0, sources.size)) is not None:
            if settings.library != PYG:
                raise HpcgnnError("DGL's GCN is measured without edge weights: convert the graph without them")
            arrays["edge_weight"] = weights
        if settings.model == "rgcn":
            if (types := file.of_edges("type", 0, sources.size)) is None:
                raise HpcgnnError(f"{path} has no types of edges, which R-GCN needs: choose another model")
            arrays["edge_type"] = types.astype(np.int64)
    arrays["edge_index"] = edges = np.stack((sources, np.repeat(np.arange(nodes), np.diff(indptr))))
    if settings.library == SAR and (np.diff(edges) == 0).all(axis=0).any():  # they are in order
        said = "has parallel edges, on which DGL's METIS fails: convert the graph with --drop-duplicates"
        raise HpcgnnError(f"{path} {said}{', and with one type of edges' if meta.num_edge_types else ''}")
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
    learned = torch.nonzero(mask.bool() & (y >= 0) if y.dim() == 1 else mask).flatten()
    y = y.long() if y.dim() == 1 else y.float()
    return Problem(x, (graph.edge_index,), y, {"train": learned}, graph.meta.num_classes)


def _no_features(path: Path) -> HpcgnnError:
    said = "has no dense features, which these layers need: convert the graph again with --features dense"
    return HpcgnnError(f"{path} {said}")


def _nothing_to_learn(path: Path) -> HpcgnnError:
    return HpcgnnError(f"{path} has no classes or no training nodes: convert a graph with labels, and with --split")


# -- the program of the peer -------------------------------------------------------------------------------------------


def _launched(line: Sequence[str], settings: PeerSettings) -> list[str]:
    """The command line, on ranks if the library has several."""
    if settings.library != SAR:
        return [*line]
    words = [sys.executable, "-m", "hpcgnn", "launch", "-n", str(settings.ranks), "-t", str(settings.threads)]
    if settings.hosts:
        words += ["--hosts", str(settings.hosts), *(["--rate", settings.rate] if settings.rate else [])]
    return [*words, "--", *line]


def require_pyg() -> None:
    """Raise :class:`HpcgnnError` if PyG cannot be imported here."""
    try:
        importlib.import_module(_LIBRARIES[PYG][0])
    except ImportError as error:
        raise _missing(PYG, sys.executable, str(error)) from error


def _require(python: str, environment: Mapping[str, str], library: str) -> None:
    module, name, _ = _LIBRARIES[library]
    try:
        done = subprocess.run(
            [python, "-c", f"import {module}"], env=environment, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise HpcgnnError(f"cannot run {python}, the Python of {name}: {error.strerror}") from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise _missing(library, python, said)


def _missing(library: str, python: str, said: str) -> HpcgnnError:
    _, name, how = _LIBRARIES[library]
    return HpcgnnError(f"{name} cannot be imported by {python} ({said[:_SAID]}): {how}")


def _environment(python: str, source: Path | None, settings: PeerSettings) -> dict[str, str]:
    """Another Python gets no PYTHONPATH of this one. On virtual hosts, SAR has to be told the interface whose rate is limited."""
    paths = [str(source.resolve())] if source else []
    paths += [] if python else [each for each in [os.environ.get("PYTHONPATH", "")] if each]
    of_host = {"SAR_SOCKET_NAME": LINK} if settings.hosts else {}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "DGLBACKEND": "pytorch", **of_host}


def _commit_of(source: Path | None) -> dict[str, str]:
    """The commit of a checkout, as a version."""
    if source is None:
        return {}
    words = ["git", "-C", str(source), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return {"sar": done.stdout.strip()} if done.returncode == 0 else {}


def _told(line: Sequence[str], environment: Mapping[str, str], settings: PeerSettings) -> dict[str, Any]:
    """Run a command line, and end it with this command; return the JSON object that it prints."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with mpiexec.started(line, _GRACE_SECONDS, env=environment, text=True, **streams) as process:
        printed, errors = process.communicate()
    texts = [text for text in printed.splitlines() if text.startswith("{")]
    if process.returncode or not texts:
        said = [text.strip() for text in (errors + printed).splitlines() if text.strip()] or ["it printed nothing"]
        wrong = next((text for text in reversed(said) if "Error" in text), said[-1])
        raise HpcgnnError(f"{name_of(settings.library)} failed ({wrong[:_SAID]}): {shlex.join(line)}")
    found: dict[str, Any] = json.loads(texts[-1])
    return found
