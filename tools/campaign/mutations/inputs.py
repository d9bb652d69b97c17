"""Small valid files of each kind. Texts and arrays are made here; the package itself makes the others from them."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import h5py
import numpy as np
import scipy.io
import scipy.sparse as sp

from campaign.mutations.readers import SMALL, command, on_two_threads

_NODES, _EDGES = 40, 150
GRAPHS = ("plain", "sparse", "multi")
KINDS = ("graph", "1", "2")  # a graph, and its division into one and two parts


def make_inputs(folder: Path) -> None:
    """Write all files to ``folder``. It starts MPI, so run it in a separate process."""
    rng = np.random.default_rng(0)
    source, target = rng.integers(0, _NODES, (2, _EDGES))
    weight = rng.uniform(0.5, 2, _EDGES).round(3)
    _write_texts(folder, source, target, weight)
    _write_arrays(folder, source, target, weight, rng)
    for name in GRAPHS:
        _run("convert", f"npz:{folder / name}.npz", f"{folder / name}-graph.h5")
        for parts in (1, 2):
            _run("partition", f"{folder / name}-graph.h5", f"{folder / name}-{parts}.h5", "--parts", str(parts))
        for kind in KINDS:
            write_version_1(folder / f"{name}-{kind}.h5", folder / f"{name}-{kind}-v1.h5")
    _run("train", f"{folder}/plain-1.h5", "--out", f"{folder}/run", *SMALL)
    on_two_threads(folder / "plain-2.h5", folder / "run2", epochs=2)
    (folder / "config.toml").write_bytes((folder / "run" / "config.toml").read_bytes())


def _run(*arguments: str) -> None:
    if code := command([*arguments, "--quiet"]):
        raise SystemExit(f"hpcgnn {' '.join(arguments)} ended with {code}")


def _write_texts(folder: Path, source: np.ndarray, target: np.ndarray, weight: np.ndarray) -> None:
    pairs = list(zip(source.tolist(), target.tolist(), weight.tolist(), strict=True))
    (folder / "edges.txt").write_text("# a comment\n" + "".join(f"{s} {d}\n" for s, d, _ in pairs))
    (folder / "weights.txt").write_text("".join(f"{s} {d} {w}\n" for s, d, w in pairs))
    (folder / "commas.txt").write_text("".join(f"{s},{d}\n" for s, d, _ in pairs))
    (folder / "edges.txt.gz").write_bytes(gzip.compress("".join(f"{s} {d}\n" for s, d, _ in pairs).encode()))
    links = {(min(s, d), max(s, d)): round(10 * w) for s, d, w in pairs if s != d}
    for name, fmt in (("plain.graph", ""), ("weights.graph", " 011 2")):
        lines = [f"{_NODES} {len(links)}{fmt}", "% a comment"]
        for node in range(_NODES):
            others = [(a + b - node, w) for (a, b), w in links.items() if node in (a, b)]
            head = ["7", "8"] if fmt else []
            lines.append(" ".join([*head, *(f"{other + 1} {w}" if fmt else f"{other + 1}" for other, w in others)]))
        (folder / name).write_text("\n".join(lines) + "\n")
    matrix = sp.coo_matrix((weight, (source, target)), shape=(_NODES, _NODES))
    scipy.io.mmwrite(folder / "real.mtx", matrix, symmetry="general")
    scipy.io.mmwrite(folder / "pattern.mtx", matrix.tocsr() + matrix.T.tocsr(), field="pattern", symmetry="symmetric")


def _write_arrays(
    folder: Path, source: np.ndarray, target: np.ndarray, weight: np.ndarray, rng: np.random.Generator
) -> None:
    share = rng.permutation(_NODES)
    masks = {
        name: np.isin(share % 4, part)
        for name, part in zip(("train", "val", "test"), ((0, 1), (2,), (3,)), strict=True)
    }
    common = {"num_nodes": np.int64(_NODES), "edge_index": np.stack([source, target])}
    common |= {f"{name}_mask": mask for name, mask in masks.items()}
    x = rng.standard_normal((_NODES, 6)).astype(np.float32)
    y = np.arange(_NODES) % 3
    thin = sp.random(_NODES, 12, 0.2, format="csr", dtype=np.float32, random_state=0)
    parts = {f"x_{part}": getattr(thin, part) for part in ("data", "indices", "indptr")} | {
        "x_shape": np.array(thin.shape)
    }
    np.savez(folder / "plain.npz", **common, x=x, y=y)
    np.savez(folder / "sparse.npz", **common, **parts, y=y, edge_weight=weight.astype(np.float32))
    several = (rng.random((_NODES, 3)) < 0.5).astype(np.uint8)
    several[:3] = np.eye(3, dtype=np.uint8)
    np.savez_compressed(folder / "multi.npz", **common, x=x, y=several)


def write_version_1(source: Path, target: Path) -> None:
    """Write the file without checksums, as version 1 had none: damage must then be detected from the values themselves."""
    shutil.copyfile(source, target)
    with h5py.File(target, "r+", locking=False) as file:
        plans = file.get("plan", {})
        for group in (file, *plans.values()):
            for name in [name for name in group if "checksum" in name]:
                del group[name]
            for name in [name for name in group.attrs if "checksum" in name]:
                del group.attrs[name]
        file.attrs["version"] = 1


def has_checksums(path: Path) -> bool:
    """Return whether checksums show that values within their ranges have changed."""
    with h5py.File(path, "r") as file:
        return int(file.attrs["version"]) >= 2
