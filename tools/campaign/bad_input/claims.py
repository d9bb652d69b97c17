"""Files that claim 2^60 rows: they must be refused, without allocation of memory for these rows."""

from __future__ import annotations

import functools
import gzip
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from campaign.mutations import readers
from campaign.mutations.case import Case
from campaign.mutations.fork import Task
from campaign.mutations.hdf5 import datasets
from campaign.mutations.more_cases import MAG, PAPERS, command
from campaign.mutations.mutation import FREE, REFUSE, Mutation

HUGE = 1 << 60
_GROUP = "headers that claim 2^60 rows"
_OF_ROWS = ("num_nodes", "num_edges", "num_features", "num_classes", "x_nnz", "num_parts")
_TEXTS = {
    "edges.txt": ("edgelist", {"0 0\n": f"{HUGE} 0\n"}),
    "plain.graph": ("metis", {}),
    "weights.graph": ("metis", {}),
    "real.mtx": ("mtx", {}),
    "pattern.mtx": ("mtx", {}),
}


def tasks(inputs: Path) -> list[Task]:
    """The tasks of this group."""
    return [*_hdf5(inputs), *_texts(inputs), *_arrays(inputs), *_others(inputs)]


def _task(case: Case, what: str, change: Callable[[Path], object], expects: str = REFUSE, touches: str = "") -> Task:
    def claim(folder: Path) -> Mutation:
        change(folder / case.target)
        return Mutation(what, expects, touches)

    return Task(case, f"{case.name}: {what}", claim, _GROUP)


def _hdf5(inputs: Path) -> list[Task]:
    found = []
    cases = (
        ("plain-graph.h5", Case("graph.h5", readers.PARTITION, (("plain-graph.h5", "graph.h5"),), "graph.h5", ())),
        ("sparse-graph.h5", Case("graph.h5", readers.PARTITION, (("sparse-graph.h5", "graph.h5"),), "graph.h5", ())),
        (
            "plain-graph-v1.h5",
            Case("graph.h5-v1", readers.PARTITION, (("plain-graph-v1.h5", "graph.h5"),), "graph.h5", ()),
        ),
        ("plain-1.h5", Case("parts.h5", readers.TRAIN, (("plain-1.h5", "parts.h5"),), "parts.h5", ())),
        ("sparse-2.h5", Case("parts.h5 of 2", readers.LOAD, (("sparse-2.h5", "parts.h5"),), "parts.h5", ())),
        ("plain-1-v1.h5", Case("parts.h5-v1", readers.TRAIN, (("plain-1-v1.h5", "parts.h5"),), "parts.h5", ())),
    )
    for source, case in cases:
        with h5py.File(inputs / source) as file:
            names, counts = datasets(file), [name for name in _OF_ROWS if name in file.attrs]
        for name in counts:
            found.append(
                _task(case, f"attribute {name} = 2^60", functools.partial(_attribute, name=name), touches=f"@{name}")
            )
        for name in names:
            for chunked in (True, False):
                what = f"{name} of {'2^60 rows in chunks' if chunked else 'as many rows as HDF5 takes'}"
                found.append(_task(case, what, functools.partial(_rows, name=name, chunked=chunked), touches=name))
    return found


def _attribute(path: Path, *, name: str) -> None:
    with h5py.File(path, "r+", locking=False) as file:
        file.attrs[name] = HUGE


def _rows(path: Path, *, name: str, chunked: bool) -> None:
    """Replace the dataset by a larger one without stored bytes, which HDF5 allocates only when they are written. Counts of the
    file are changed to agree.
    """
    with h5py.File(path, "r+", locking=False) as file:
        shape, dtype = file[name].shape, file[name].dtype
        rows = HUGE if chunked else HUGE // max(dtype.itemsize * int(np.prod(shape[1:])), 1)
        del file[name]
        file.create_dataset(name, (rows, *shape[1:]), dtype, chunks=(1024, *shape[1:]) if chunked else None)
        last = name.rpartition("/")[2]
        if name.startswith("nodes/") and last in ("x", "y"):
            file.attrs["num_nodes"] = rows
        elif last in ("indices", "weight"):
            file.attrs["num_edges"] = rows


def _texts(inputs: Path) -> list[Task]:
    found = []
    for name, (kind, _) in _TEXTS.items():
        case = Case(kind, readers.convert(kind, name), ((name, name),), name, ())
        line = next(line for line in (inputs / name).read_text().splitlines() if line[0] not in "%#")
        words = line.split()
        for place in range(min(len(words), 3)):
            changed = " ".join([*words[:place], str(HUGE), *words[place + 1 :]])
            # This number of the METIS format is not a number of rows.
            found.append(
                _task(case, f"{line!r} is {changed!r}", functools.partial(_replace, before=line, after=changed))
            )
        both = " ".join([str(HUGE), str(HUGE), *words[2:]])
        found.append(_task(case, f"{line!r} is {both!r}", functools.partial(_replace, before=line, after=both)))
    web = (("web.graph", "web.graph"), ("web.properties", "web.properties"))
    case = Case("bvgraph", readers.convert("bvgraph", "web.graph"), web, "web.properties", ())
    for line in (inputs / "web.properties").read_text().splitlines():
        key, _, value = line.partition("=")
        if value.isdigit() and key != "version":
            after = f"{key}={HUGE}"
            expects = FREE if key == "maxrefcount" else REFUSE  # no reader uses it
            found.append(_task(case, after, functools.partial(_replace, before=line, after=after), expects))
    return found


def _replace(path: Path, *, before: str, after: str) -> None:
    path.write_text(path.read_text().replace(before, after, 1))


def _arrays(inputs: Path) -> list[Task]:
    """Members of .npz archives, and .npy files."""
    found = []
    for name in ("plain.npz", "sparse.npz", "multi.npz"):
        case = Case("npz", readers.convert("npz", name), ((name, name),), name, ())
        for member in zipfile.ZipFile(inputs / name).namelist():
            found.append(
                _task(case, f"{member} of 2^60 rows", functools.partial(_member, member=member), touches=member)
            )
        found.append(_task(case, "num_nodes = 2^60", _num_nodes))
    for name in (
        "processed/paper/node_feat.npy",
        "processed/paper/node_label.npy",
        "processed/paper___cites___paper/edge_index.npy",
    ):
        case = Case(
            "mag240m", command("convert", "ogb:mag240m?root=.", "out.h5", "--quiet"), ((MAG, MAG),), f"{MAG}/{name}", ()
        )
        found.append(_task(case, f"{Path(name).name} of 2^60 rows", _header))
    for name, members in (("data.npz", ("node_feat.npy", "edge_index.npy")), ("node-label.npz", ("node_label.npy",))):
        reader = command("convert", "ogb:ogbn-papers100M?root=.", "out.h5", "--quiet")
        case = Case("papers100M", reader, ((PAPERS, PAPERS),), f"{PAPERS}/raw/{name}", ())
        found += [
            _task(case, f"{member} of 2^60 rows", functools.partial(_member, member=member)) for member in members
        ]
    return found


def _claiming(content: bytes) -> bytes:
    """A .npy file whose header claims 2^60 rows, or 2^60 columns if the first axis has a fixed size."""
    array = np.load(io.BytesIO(content))
    shape = (2, HUGE) if array.ndim == 2 and len(array) == 2 else (HUGE, *array.shape[1:])
    buffer = io.BytesIO()
    told = {"descr": array.dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, told)
    return buffer.getvalue() + array.tobytes()


def _header(path: Path) -> None:
    path.write_bytes(_claiming(path.read_bytes()))


def _member(path: Path, *, member: str) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members[member] = _claiming(members[member])
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def _num_nodes(path: Path) -> None:
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **arrays | {"num_nodes": np.int64(HUGE)})


def _others(inputs: Path) -> list[Task]:
    parquet = Case(
        "parquet",
        readers.convert("parquet", "table.parquet"),
        (("table.parquet", "table.parquet"),),
        "table.parquet",
        (),
    )
    binary = Case("binedges", readers.convert("binedges", "pairs.bin"), (("pairs.bin", "pairs.bin"),), "pairs.bin", ())
    zipped = Case(
        "edgelist", readers.convert("edgelist", "edges.txt.gz"), (("edges.txt.gz", "edges.txt.gz"),), "edges.txt.gz", ()
    )
    parts_and_run = (("plain-1.h5", "parts.h5"), ("run", "run"))
    found = [
        _task(parquet, "an id of 2^60", _id_in_table),
        _task(binary, "an id of 2^60", _id_in_pairs),
        _task(zipped, "an id of 2^60", _id_in_gzip),
        _task(zipped, "1 GiB of zeros, deflated", _bomb),
    ]
    for name, reader in (("last", readers.RESUME), ("best", readers.PREDICT)):
        case = Case(f"{name}.pt", reader, parts_and_run, f"run/checkpoints/{name}.pt", ())
        names = sorted(torch.load(inputs / "run" / "checkpoints" / f"{name}.pt", weights_only=True)["model"])
        found += [
            _task(case, f"{each} of 2^60 rows", functools.partial(_tensor, name=each), touches="model")
            for each in names
        ]
    return found


def _id_in_table(path: Path) -> None:
    table = pq.read_table(path).to_pydict()
    table["target"][7] = HUGE
    pq.write_table(pa.table(table), path)


def _id_in_pairs(path: Path) -> None:
    pairs = np.fromfile(path, "<i8")
    pairs[11] = HUGE
    pairs.tofile(path)


def _id_in_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + f"{HUGE} 0\n".encode()))


def _bomb(path: Path) -> None:
    """One line that is a thousand times as large as the file."""
    path.write_bytes(gzip.compress(bytes(1 << 20)) * 1024)


def _tensor(path: Path, *, name: str) -> None:
    """A view of one number that claims to have 2^60 rows."""
    content = torch.load(path, weights_only=True)
    columns = content["model"][name].shape[1:]
    content["model"][name] = torch.zeros(1).expand(HUGE // max(columns.numel(), 1), *columns)
    torch.save(content, path)
