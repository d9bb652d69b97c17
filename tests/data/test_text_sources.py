"""Edge lists, METIS and MatrixMarket: columns and their names, compressed texts, names of files, and refusals."""

import bz2
import gzip
import lzma
import os

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from helpers import check_refused, converted, memory_below, notes_of, pairs, weighted

from hpcgnn.data.h5 import OTHER_COMPRESSED
from hpcgnn.sources.text import blocks


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Read only a few lines at a time, so that every test crosses the borders of blocks."""
    monkeypatch.setattr(blocks, "__defaults__", (20,))


PANDAS = ",src,dst\n0,5,6\n1,6,7\n2,7,5\n"
BARE = "column 1 is the source, column 2 is the target"
NAMED = "column 'src' is the source, column 'dst' is the target"
# Text, edges (with weights), the note about columns.
COLUMNS = {
    "two columns": ("5 6\n6 7\n7 5\n", 2, BARE),
    "three columns": ("5 6 1\n6 7 1.5\n7 5 2\n", 3, f"{BARE}, column 3 is the weight"),
    "an index of pandas": (PANDAS, 2, f"{NAMED}; not read: column 1 (no name)"),
    "an index of pandas, and a comment": (f"#{PANDAS}", 2, f"{NAMED}; not read: column 1 (no name)"),
    "an index of R": (
        PANDAS.replace("src", '"src"').replace("\n0,", '\n"1",'),
        2,
        f"{NAMED}; not read: column 1 (no name)",
    ),
    "an index beside unknown names": (
        PANDAS.replace("src", "a").replace("dst", "b"),
        2,
        "column 'a' is the source, column 'b' is the target; not read: column 1 (no name)",
    ),
    "a time": (
        "src dst timestamp\n5 6 1600000001\n6 7 1600000002\n7 5 1\n",
        2,
        f"{NAMED}; not read: column 'timestamp'",
    ),
    "text": ('src,dst,"what, why"\n5,6,"a, b"\n6,7,\n7,5,c\n', 2, f"{NAMED}; not read: column 'what, why'"),
    "another order": (
        "Weight\tTo\tFrom\n1\t6\t5\n1.5\t7\t6\n2\t5\t7\n",
        3,
        "column 'Weight' is the weight, column 'To' is the target, column 'From' is the source",
    ),
    "SNAP": (
        "# Nodes: 3\n# FromNodeId\tToNodeId\n5\t6\n6\t7\n7\t5\n",
        2,
        "column 'FromNodeId' is the source, column 'ToNodeId' is the target",
    ),
    "a comment with other words": ("# of 3\n% other\n\n5 6\n6 7\n7 5\n", 2, BARE),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_what_each_column_of_an_edge_list_is_taken_for_is_told(tmp_path, case):
    text, columns, note = COLUMNS[case]
    path = tmp_path / "edges.csv"
    path.write_text(text)
    meta, edges, *_ = converted(f"edgelist:{path}", tmp_path)
    assert meta.weighted == (columns == 3)
    assert weighted(edges) == [edge[:columns] for edge in [(5, 6, 1.0), (6, 7, 1.5), (7, 5, 2.0)]]
    assert notes_of(f"edgelist:{path}", tmp_path)[0] == f"{path}: {note}"


def test_names_that_blanks_alone_tell_apart_are_one_node_with_a_note(tmp_path):
    path = tmp_path / "edges.csv"
    path.write_text('source,target\n" a",b\na,"b "\n')
    meta, edges, *_ = converted(f"edgelist:{path}", tmp_path)
    assert (meta.num_nodes, pairs(edges)) == (2, [(0, 1), (0, 1)])
    assert f"{path}: names are read without blanks around them, as ' a'" in notes_of(f"edgelist:{path}", tmp_path)
    path.write_text("source,target\na,b\n")
    assert "without blanks" not in "".join(notes_of(f"edgelist:{path}", tmp_path))


MARK = b"\xef\xbb\xbf"
TEXTS = {
    "edgelist": "0 1\n1 0\n",
    "metis": "2 1\n2\n1\n",
    "mtx": "%%MatrixMarket matrix coordinate pattern general\n2 2 2\n1 2\n2 1\n",
}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_text_with_a_byte_order_mark_and_compressed(tmp_path, kind, compress):
    path, text = tmp_path / "graph", TEXTS[kind].encode()
    for mark in (b"", MARK):
        path.write_bytes(compress(mark + text))
        assert pairs(converted(f"{kind}:{path}", tmp_path)[1]) == [(0, 1), (1, 0)]
    path.write_bytes(compress(TEXTS[kind].encode("utf-16")))
    check_refused(f"{kind}:{path}", tmp_path, "is text in UTF-16: make it UTF-8 with `iconv -f UTF-16 -t UTF-8 FILE`$")
    if compress is not bytes:
        path.write_bytes(compress(text)[:-6])
        check_refused(f"{kind}:{path}", tmp_path, f"{path} cannot be read as ")


@pytest.mark.parametrize("signature", OTHER_COMPRESSED)
def test_text_that_another_program_has_compressed_is_named(tmp_path, signature):
    name, command = OTHER_COMPRESSED[signature]
    path = tmp_path / "graph"
    path.write_bytes(signature + b"junk")
    for kind in TEXTS:
        check_refused(f"{kind}:{path}", tmp_path, rf"is compressed by {name}: unpack it first \(`{command} FILE`\)")


def test_most_nodes_may_be_without_edges_if_the_user_says_so(tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("0 65535\n")
    assert converted(f"edgelist:{path}", tmp_path)[0].num_nodes == 65536  # so few nodes need no confirmation
    path.write_text("0 65536\n")
    check_refused(f"edgelist:{path}", tmp_path, "nodes=65537")
    assert converted(f"edgelist:{path}?nodes=65537", tmp_path)[0].num_nodes == 65537
    path.write_text("0 80000\n" * 10_001)  # 8 nodes for each edge
    assert converted(f"edgelist:{path}", tmp_path)[0].num_nodes == 80001
    path.write_text(REAL + "70000 70000 1\n1 1 1\n")
    assert converted(f"mtx:{path}?nodes=70000", tmp_path)[0].num_nodes == 70000
    check_refused(f"mtx:{path}?nodes=5", tmp_path, "nodes=5 was given, but there are 70,000")


@pytest.mark.parametrize("name", ["what?.txt", "a?b=c.txt", b"caf\xe9.txt", "[b]x.txt", "blank and\ttab"])
@pytest.mark.parametrize("query", ["", "?nodes=9"])
def test_names_of_files(tmp_path, name, query):
    path = tmp_path / (name if isinstance(name, str) else os.fsdecode(name))
    path.write_text("0 1\n1 2\n")
    source = f"edgelist:{path}{query}"
    meta, *_ = converted(source, tmp_path)
    assert meta.num_nodes == (9 if query else 3)
    assert meta.provenance["source"] == source


@pytest.mark.parametrize("name", ["~nobody-here/g.txt", "x" * 300, "none?.txt", "\0"])
def test_names_of_no_file(tmp_path, name):
    check_refused(f"edgelist:{name}", tmp_path, r"does not exist|should be key=value")


REAL = "%%MatrixMarket matrix coordinate real general\n"


def test_a_skew_symmetric_matrix_equals_scipys(tmp_path):
    path = tmp_path / "m.mtx"
    path.write_text("%%MatrixMarket matrix coordinate real skew-symmetric\n3 3 2\n2 1 5\n3 2 -0.5\n")
    _, edges, *_ = converted(f"mtx:{path}", tmp_path)
    found = sp.coo_matrix((edges[:, 2], edges[:, :2].astype(int).T), shape=(3, 3)).toarray()
    assert np.array_equal(found, scipy.io.mmread(path).toarray())


REFUSED = {
    "edgelist": [
        ("0 1\n# c\n1 2\n2 0\n0 2\n0 1.5\n", "line 6: '0 1.5': node id '1.5' is not a whole number"),
        ("0 1\n1 x\n", "node id 'x' is not a whole number of at most 64 bits$"),
        ("0 x\n1 2\n", "node id 'x' is not a whole number, but the other end .* if ids are names, add .names=yes$"),
        ("0 1\n1 2,x\n", "line 2: '1 2,x': node id '2,x' is not a whole number of at most 64 bits$"),
        ("from,at\n0,1\n", "has the columns from, at, and none of them is known to be the target .* .target=COLUMN$"),
        ("a,b,c\n0,1,1\n", "has the columns a, b, c, and none of them is known to be the source .* .source=COLUMN$"),
        ("src,dst\n0,1\n\n1,2,3\n", "line 4: '1,2,3' has 3 columns, but the lines before have 2"),
        (
            "0 1 1\n1 2 1600000001\n",
            "edge 1 .1 -> 2. has weight 1600000001, of which float32 would keep 1600000000: leave",
        ),
        (
            "0 1 1600000001000000001\n",
            "has weight 1600000001000000000, of which float32 would keep 1599999974890799104",
        ),
        ("0 1 2 3\n", "has 4 columns"),
        ("0\n", "has 1 columns"),
        ("# nothing\n", "holds no edges"),
        ("0 99999999999\n", "converts graphs of 1 to"),
        ("0 2000000000\n", "1 edge, but its node ids go up to 2,000,000,000: .* say .nodes=2000000001 if"),
        ("0 1\n" * 9 + "0 500000000\n", "10 edges, but its node ids go up to 500,000,000"),
        ("0 99999999999999999999\n", "node id '99999999999999999999' is not a whole number of at most 64 bits"),
        ("0 \u00b2\n", "node id '\u00b2' is not a whole number"),
        ("0 1 1\n0 1 heavy\n", "line 2: '0 1 heavy': weight 'heavy' is not a number"),
        ("0 \0001\n", "is not a whole number"),
    ],
    "metis": [
        ("", "first line should be"),
        ("2 1 7\n2\n1\n", "fmt '7'"),
        ("2 1\n3\n1\n", "node 1 has neighbour 3, but ids run from 1 to 2"),
        ("2 1\n2\n", "1 node lines with 1 neighbours"),
        ("2 2\n2\n1\n", "announces 2 nodes and 4 neighbours"),
        ("2 1\n2.5\n1\n", "node 1 has '2.5'"),
        ("2 1 1\n2 7\n1 99999999999999999999\n", "node 2 has '9+', but METIS has whole numbers only"),
        ("2 1 1\n2\n1\n", "line of node 1 does not fit"),
        ("2 1 1\n2 5\n1 6\n", "an edge at one of its ends only, or with another weight"),
        (f"{10**15} 1\n2\n1\n", "converts graphs of 1 to"),
        ("2000000000 1\n2\n1\n", "announces 2,000,000,000 nodes"),
        (f"2 {10**15}\n2\n1\n", "has 2 node lines with 2 neighbours"),
        (f"2 1 10 {10**15}\n2\n1\n", "line of node 1 does not fit"),
        (f"{'9' * 5000} 1\n2\n1\n", "the first line should be"),
    ],
    "mtx": [
        (REAL + "2 3 1\n1 1 1.0\n", "needs a square matrix"),
        ("%%MatrixMarket matrix array real general\n1 1\n1.0\n", "real array matrix"),
        ("%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1.0 2.0\n", "complex coordinate matrix"),
        (REAL + "2 2 1\n3 1 1.0\n", "entry in row 3, column 1: these run from 1 to 2"),
        (REAL + "2 2 1\n1,1,1\n", "line 3: '1,1,1' has 1 columns"),
        (REAL + "2 2 1\n1 1\n", "line 3: '1 1' has 2 columns"),
        (REAL + "2 2 1\n1 1.5 1\n", "node id '1.5' is not a whole number"),
        (REAL + "2 2 2\n1 1 1\n", "has 1 entries, but its second line announces 2"),
        (REAL + f"{10**15} {10**15} {10**15}\n", "converts graphs of 1 to"),
        (REAL + f"{10**9} {10**9} 1\n1 1 1\n", "say .nodes=1000000000 if most"),
        (REAL + "% nothing else\n", "the line of sizes should be"),
        (
            REAL.replace("real", "integer") + f"2 2 2\n1 1 1\n1 2 {10**23}\n",
            "integers of at most 64 bits, but has 1e.23",
        ),
        (REAL.replace("real", "integer") + "2 2 1\n2 1 1.5\n", "integers of at most 64 bits, but has 1.5"),
    ],
    "edgelist?source=a": [("0 1\n", "has no line that names its columns, so leave source= out")],
    "edgelist?weight=a": [("src dst\n0 1\n", "has no column 'a'; it has src, dst")],
    "edgelist?weight=src": [("src dst\n0 1\n", "one column cannot be two of source, target, weight and type")],
    "edgelist?source=v&target=w": [("v,w\n0,1\n0,x\n", "line 3: '0,x': node id 'x' is not a whole number")],
    "edgelist?source=src&target=src": [
        ("src dst\n0 1\n", "one column cannot be two of source, target, weight and type"),
        ("# src dst\n0 1\n", "one column cannot be two of source, target, weight and type"),
        ("# of src\n# edges from src to dst\n0 1\n", "has no line that names its columns"),
    ],
    "edgelist?nodes=3": [("0 1\n1 4\n", "edge 1 is 1 -> 4, but node ids run from 0 to 2")],
}


@pytest.mark.usefixtures("tiny_blocks")
@pytest.mark.parametrize(
    ("kind", "text", "sentence"), [(kind, *case) for kind, cases in REFUSED.items() for case in cases]
)
def test_bad_text(tmp_path, kind, text, sentence):
    kind, mark, options = kind.partition("?")
    (tmp_path / "graph").write_text(text)
    check_refused(f"{kind}:{tmp_path / 'graph'}{mark}{options}", tmp_path, sentence)


def test_a_line_that_does_not_end_takes_little_memory(tmp_path):
    path = tmp_path / "edges.gz"
    path.write_bytes(gzip.compress(bytes(1 << 20)) * 64)
    with memory_below(24 << 20):
        check_refused(f"edgelist:{path}", tmp_path, "a line has more than 65,536 characters")
