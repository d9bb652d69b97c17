"""WebGraph's format, Parquet tables and binary pairs, read in slabs, from small files of the real formats."""

from __future__ import annotations

import os
import re
import tracemalloc

import numpy as np
import pytest
from bv_writer import Writer, delta, gamma, unary, zeta
from helpers import check_refused, converted, notes_of, pairs, weighted
from requires import require_module

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.sources import open_source, webgraph

NODES = 300


@pytest.fixture(scope="module")
def successors():
    """Links like those of web pages: to runs of neighbours, to successors of the previous page, and to some distant pages."""
    rng = np.random.default_rng(0)
    found = []
    for node in range(NODES):
        links = set(rng.integers(0, NODES, rng.integers(0, 5)).tolist())
        if node % 3:
            links |= {link for link in found[node - 1] if rng.random() < 0.8}
        if node % 4 == 0:
            start = int(rng.integers(0, NODES - 20))
            links |= set(range(start, start + int(rng.integers(2, 15))))
        found.append(sorted(links) if node % 7 else [])
    found[NODES - 1] = list(range(0, NODES, 2))
    return found


def arcs_of(successors):
    return [(node, successor) for node, links in enumerate(successors) for successor in links]


# -- WebGraph ----------------------------------------------------------------------------------------------------------


def test_the_codes_are_those_of_the_papers():
    """Examples of "The WebGraph framework I" and "II", for x = 1, 2, ..., which are written as 0, 1, ..."""
    assert [unary(n) for n in range(3)] == ["1", "01", "001"]
    assert [gamma(n) for n in range(5)] == ["1", "010", "011", "00100", "00101"]
    assert [delta(n) for n in range(4)] == ["1", "0100", "0101", "01100"]
    assert [zeta(n, 2) for n in range(8)] == ["10", "110", "111", "01000", "01001", "01010", "01011", "011000"]
    assert [zeta(n, 3) for n in range(4)] == ["100", "1010", "1011", "1100"]


@pytest.mark.parametrize(
    "writer",
    [
        Writer(),
        Writer(window=0, least=0),
        Writer(window=1, least=2, k=1),
        Writer(window=3, k=5, codes={"RESIDUALS": "DELTA", "REFERENCES": "GAMMA", "OUTDEGREES": "DELTA"}),
        Writer(codes={"RESIDUALS": "GAMMA", "BLOCKS": "DELTA", "BLOCK_COUNT": "UNARY", "REFERENCES": "DELTA"}),
    ],
    ids=["usual", "plain", "short", "delta", "gamma"],
)
def test_bvgraph(tmp_path, successors, writer, monkeypatch):
    monkeypatch.setattr(webgraph, "_SLAB_BYTES", 100)
    writer.write(tmp_path / "web", successors)
    source = open_source(f"bvgraph:{tmp_path / 'web'}", tmp_path)
    for chunk in (10, 1 << 20):
        chunks = [(each.src.copy(), each.dst.copy()) for each in source.edges(chunk)]
        src, dst = (np.concatenate(arrays) for arrays in zip(*chunks, strict=True))
        assert list(zip(src.tolist(), dst.tolist(), strict=True)) == arcs_of(successors)


@pytest.mark.parametrize("left", [0, 10, 0.5, -1])
def test_a_bvgraph_that_was_cut_short(tmp_path, successors, left):
    Writer().write(tmp_path / "web", successors)
    path = tmp_path / "web.graph"
    size = path.stat().st_size
    os.truncate(path, left % size if isinstance(left, int) else int(left * size))
    check_refused(f"bvgraph:{path}", tmp_path, f"{path} was cut short")


def test_a_damaged_bvgraph_ends_in_a_sentence(tmp_path, successors):
    """If the damaged bits still form a graph, it must have another number of arcs, or ids out of range."""
    Writer().write(tmp_path / "web", successors)
    path, rng = tmp_path / "web.graph", np.random.default_rng(5)
    whole = path.read_bytes()
    refused = 0
    for _ in range(60):
        data = bytearray(whole)
        for place in rng.integers(0, len(data), 3):
            data[place] = rng.integers(0, 256)
        path.write_bytes(data)
        try:
            converted(f"bvgraph:{path}", tmp_path)
        except HpcgnnError:
            refused += 1
    assert refused > 40


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("arcs=", "arcs=1", "one of the two files belongs to another graph"),
        ("nodes=300", "nodes=x", "nodes=x should be a whole number"),
        ("nodes=300\n", "", "nodes= should be a whole number"),
        ("nodes=300", "nodes=300000000", "was cut short, or does not belong to"),
        ("nodes=300", "nodes=340", "was cut short"),
        ("zetak=3", "zetak=99", "zetak=99 should be from 1 to 30"),
        ("windowsize=7", "windowsize=9999999", "should be at most"),
        ("compressionflags=", "compressionflags=RESIDUALS_GOLOMB", "code RESIDUALS_GOLOMB"),
        ("version=0", "endianness=little", "not describe a big-endian BVGraph"),
    ],
)
def test_properties_that_do_not_fit(tmp_path, successors, old, new, sentence):
    Writer().write(tmp_path / "web", successors)
    path = tmp_path / "web.properties"
    path.write_text(path.read_text().replace(old, new))
    check_refused(f"bvgraph:{tmp_path / 'web'}", tmp_path, sentence)


def test_a_bvgraph_is_two_files(tmp_path, successors):
    check_refused(f"bvgraph:{tmp_path / 'web'}", tmp_path, "web.graph does not exist")
    Writer().write(tmp_path / "web", successors)
    for suffix in (".graph", ".properties"):
        assert pairs(converted(f"bvgraph:{tmp_path / 'web'}{suffix}", tmp_path)[1]) == arcs_of(successors)
    (tmp_path / "web.properties").unlink()
    check_refused(f"bvgraph:{tmp_path / 'web'}", tmp_path, "web.properties does not exist")


# -- binary pairs ------------------------------------------------------------------------------------------------------


@pytest.fixture
def arcs():
    """(E, 2) int64."""
    return np.random.default_rng(1).integers(0, NODES, (5000, 2))


def test_binary_pairs_that_are_wrong(tmp_path, arcs):
    path = tmp_path / "edges.bin"
    arcs.tofile(path)
    os.truncate(path, 16 * 4321 + 5)
    check_refused(f"binedges:{path}", tmp_path, f"{path} was cut short.* ends at byte 69,141, 5 bytes into edge 4,321")
    os.truncate(path, 0)
    check_refused(f"binedges:{path}", tmp_path, "holds no edges")
    arcs[77, 1] = -4
    arcs.tofile(path)
    check_refused(f"binedges:{path}", tmp_path, f"edge 77 is {arcs[77, 0]} -> -4")
    check_refused(f"binedges:{path}?dtype=int16", tmp_path, "dtype=int16 should be one of int32, int64, uint32")


def test_memory_does_not_grow_with_binary_pairs(tmp_path):
    path = tmp_path / "edges.bin"
    (np.arange(6_000_000, dtype=np.int64) % 1_000_000).tofile(path)
    tracemalloc.start()
    try:
        source = open_source(f"binedges:{path}", tmp_path)
        assert sum(chunk.src.size for chunk in source.edges(1 << 16)) == 3_000_000
        assert tracemalloc.get_traced_memory()[1] < 24_000_000, "half of the file"
    finally:
        tracemalloc.stop()


def test_pairs_of_another_type_are_told_with_the_type(tmp_path):
    np.array([[0, 1], [1, 2]], np.int32).tofile(tmp_path / "edges")
    source = f"binedges:{tmp_path / 'edges'}"
    check_refused(source, tmp_path, r"read as int64, has node id 8,589,934,593: name another type with .dtype=int32")
    assert pairs(converted(f"{source}?dtype=int32", tmp_path)[1]) == [(0, 1), (1, 2)]


# -- Parquet -----------------------------------------------------------------------------------------------------------


def write_parquet(path, columns, **options):
    pa = require_module("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table(columns), path, row_group_size=700, **options)
    return f"parquet:{path}"


def test_parquet_with_other_names(tmp_path, arcs):
    columns = {"page": arcs[:, 0], "link": arcs[:, 1], "strength": np.ones(5000, np.int8)}
    source = write_parquet(tmp_path / "edges.parquet", columns)
    check_refused(
        source, tmp_path, "has no column for the source, such as source; it has page, link, strength: name it"
    )
    meta, edges, *_ = converted(f"{source}?source=page&target=link&weight=strength&nodes=999", tmp_path)
    assert (meta.num_nodes, meta.weighted) == (999, True)
    assert pairs(edges) == pairs(arcs)
    source = write_parquet(tmp_path / "named.parquet", {"time": arcs[:, 0], "to": arcs[:, 1], "src": arcs[:, 0]})
    assert pairs(converted(source, tmp_path)[1]) == pairs(arcs)
    columns = "named.parquet: column 'to' is the target, column 'src' is the source; not read: column 'time'$"
    assert re.search(columns, notes_of(source, tmp_path)[0])


def test_the_names_of_parquet_columns_are_compared_exactly_first(tmp_path, arcs):
    ones = np.ones(5000)
    columns = {
        "Source": arcs[:, 1],
        "source": arcs[:, 0],
        "u": arcs[:, 1],
        "Target": arcs[:, 1],
        "W": 2 * ones,
        "w": ones,
    }
    _, edges, *_ = converted(write_parquet(tmp_path / "edges.parquet", columns), tmp_path)
    assert weighted(edges) == weighted(np.column_stack([arcs, ones]))
    columns = {"source": arcs[:, 0], "target": arcs[:, 1], "w": ["word"] * 5000}
    source = write_parquet(tmp_path / "edges.parquet", columns)
    assert notes_of(source, tmp_path)[0].endswith("not read: column 'w'")
    check_refused(
        f"{source}?weight=w", tmp_path, "column w is of string, but it should be of whole numbers or of float32"
    )
    check_refused(
        f"{source}?source=source&target=source", tmp_path, "one column cannot be two of source, target, weight"
    )


def test_parquet_that_is_wrong(tmp_path, arcs):
    path = tmp_path / "edges.parquet"
    source = write_parquet(path, {"src": arcs[:, 0], "dst": arcs[:, 1].astype(float)})
    check_refused(source, tmp_path, "column dst is of double, but it should be of whole numbers")
    write_parquet(path, {"src": [*arcs[1:, 0].tolist(), None], "dst": arcs[:, 1]})
    check_refused(source, tmp_path, "column src has empty values in row group 7")
    write_parquet(path, {"src": arcs[:, 0], "dst": arcs[:, 1]}, compression="snappy")
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    check_refused(source, tmp_path, f"{path} cannot be read as Parquet at its footer")
    path.write_bytes(whole[:2000] + b"\xff" * 900 + whole[2900:])
    check_refused(source, tmp_path, "at row group")


@pytest.mark.parametrize("kind", ["edgelist", "binedges", "parquet"])
def test_ids_that_count_from_1_are_told(tmp_path, kind):
    path, ids = tmp_path / "edges", np.array([[1, 2], [2, 3]])
    for first, told in ((1, ["the smallest node id is 1, so node 0 has no edges"]), (0, [])):
        if kind == "parquet":
            source = write_parquet(path, {"src": ids[:, 0], "dst": ids[:, 1]})
        else:
            np.savetxt(path, ids, "%d") if kind == "edgelist" else ids.tofile(path)
            source = f"{kind}:{path}"
        assert [note.partition(":")[0] for note in notes_of(source, tmp_path) if "smallest" in note] == told, first
        assert any("smallest" in note for note in notes_of(source, tmp_path, labels="random:2")) == bool(told)
        ids -= 1
    path.write_text(
        "%%MatrixMarket matrix coordinate real general\n3 3 1\n3 2 1\n"
    )  # the format says that ids count from 1
    assert notes_of(f"mtx:{path}", tmp_path) == []
