"""WebGraph's format, Parquet tables and binary pairs, read in slabs, from small files of the real formats."""

from __future__ import annotations

import os

import numpy as np
import pytest
from bv_writer import Writer, delta, gamma, unary, zeta
from helpers import check_refused, converted, memory_below, notes_of, pairs, weighted
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


@pytest.fixture
def written(tmp_path, successors):
    """The file web.graph, with web.properties beside it."""
    Writer().write(tmp_path / "web", successors)
    return tmp_path / "web.graph"


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
def test_a_bvgraph_that_was_cut_short(tmp_path, written, left):
    size = written.stat().st_size
    os.truncate(written, left % size if isinstance(left, int) else int(left * size))
    check_refused(f"bvgraph:{written}", tmp_path, f"{written} was cut short")


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
def test_properties_that_do_not_fit(tmp_path, written, old, new, sentence):
    path = written.with_suffix(".properties")
    path.write_text(path.read_text().replace(old, new))
    check_refused(f"bvgraph:{tmp_path / 'web'}", tmp_path, sentence)


def test_a_bvgraph_is_two_files(tmp_path, written, successors):
    for suffix in (".graph", ".properties"):
        assert pairs(converted(f"bvgraph:{tmp_path / 'web'}{suffix}", tmp_path)[1]) == arcs_of(successors)
    for suffix in (".properties", ".graph"):
        written.with_suffix(suffix).unlink()
        check_refused(f"bvgraph:{tmp_path / 'web'}", tmp_path, f"web{suffix} does not exist")


def test_a_damaged_bvgraph_ends_in_a_sentence(tmp_path, written):
    """If the damaged bits still form a graph, it must have another number of arcs, or ids out of range."""
    path, rng = written, np.random.default_rng(5)
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


# -- binary pairs ------------------------------------------------------------------------------------------------------


ARCS = np.random.default_rng(1).integers(0, NODES, (2000, 2))


def test_binary_pairs_that_are_wrong(tmp_path):
    path, arcs = tmp_path / "edges.bin", ARCS.copy()
    arcs.tofile(path)
    os.truncate(path, 16 * 1321 + 5)
    check_refused(f"binedges:{path}", tmp_path, f"{path} was cut short.* ends at byte 21,141, 5 bytes into edge 1,321")
    os.truncate(path, 0)
    check_refused(f"binedges:{path}", tmp_path, "holds no edges")
    arcs[77, 1] = -4
    arcs.tofile(path)
    check_refused(f"binedges:{path}", tmp_path, f"edge 77 is {arcs[77, 0]} -> -4")
    check_refused(f"binedges:{path}?dtype=int16", tmp_path, "dtype=int16 should be one of int32, int64, uint32")
    np.array([[0, 1], [1, 2]], np.int32).tofile(path)
    told = r"read as int64, has node id 8,589,934,593: name another type with .dtype=int32"
    check_refused(f"binedges:{path}", tmp_path, told)


def test_memory_does_not_grow_with_binary_pairs(tmp_path):
    path = tmp_path / "edges.bin"
    (np.arange(6_000_000, dtype=np.int64) % 1_000_000).tofile(path)
    with memory_below(24_000_000):  # half of the file
        source = open_source(f"binedges:{path}", tmp_path)
        assert sum(chunk.src.size for chunk in source.edges(1 << 16)) == 3_000_000


# -- Parquet -----------------------------------------------------------------------------------------------------------


def write_parquet(path, columns, **options):
    pa = require_module("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table(columns), path, row_group_size=700, **options)
    return f"parquet:{path}"


SRC, DST, ONES = ARCS[:, 0], ARCS[:, 1], np.ones(len(ARCS))
COLUMNS = [
    ({"page": SRC, "link": DST, "strength": ONES.astype(np.int8)}, "?source=page&target=link&weight=strength", 1, "page"),
    ({"time": SRC, "to": DST, "src": SRC}, "", None,
     "column 'to' is the target, column 'src' is the source; not read: column 'time'"),
    # Names are compared exactly before they are compared without their case.
    ({"Source": DST, "source": SRC, "u": DST, "Target": DST, "W": 2 * ONES, "w": ONES}, "", 1, "not read"),
    ({"source": SRC, "target": DST, "w": ["word"] * len(ARCS)}, "", None, "not read: column 'w'"),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "options", "weight", "told"), COLUMNS)
def test_what_each_column_of_parquet_is_taken_for(tmp_path, columns, options, weight, told):
    source = write_parquet(tmp_path / "edges.parquet", columns) + options
    assert told in notes_of(source, tmp_path)[0]
    edges = converted(source, tmp_path)[1]
    assert weighted(edges) == sorted((*pair, *([weight] if weight else ())) for pair in ARCS.tolist())


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ({"page": SRC, "link": DST}, "", "has no column for the source, such as source; it has page, link: name it"),
        ({"src": SRC, "dst": DST.astype(float)}, "", "column dst is of double, but it should be of whole numbers"),
        ({"src": [*SRC[1:].tolist(), None], "dst": DST}, "", "column src has empty values in row group 2"),
        ({"src": SRC, "dst": DST, "w": ["word"] * len(ARCS)}, "?weight=w",
         "column w is of string, but it should be of whole numbers or of float32"),
        ({"src": SRC, "dst": DST}, "?source=src&target=src", "one column cannot be two of source, target, weight"),
    ],
)  # fmt: skip
def test_columns_of_parquet_that_are_wrong(tmp_path, columns, options, sentence):
    check_refused(write_parquet(tmp_path / "edges.parquet", columns) + options, tmp_path, sentence)


def test_damaged_parquet(tmp_path):
    path = tmp_path / "edges.parquet"
    source = write_parquet(path, {"src": SRC, "dst": DST}, compression="snappy")
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
