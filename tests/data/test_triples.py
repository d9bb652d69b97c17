"""Triples with names, types and features of edges in text, Parquet and RDF: compared with the triples that were written."""

import csv
import gzip
import re

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from helpers import check_refused, converted, notes_of
from requires import require_module

import hpcgnn
from hpcgnn.cli.show import show
from hpcgnn.data.names import names
from hpcgnn.sources.convert import ConvertOptions, convert
from hpcgnn.sources.text import blocks

RNG = np.random.default_rng(5)
RELATIONS = ["lives in", "knows", "likes, very much"]
TRIPLES = sorted(
    {
        (f"person {head}", RELATIONS[kind], f"town, {tail}" if kind == 0 else f"person {tail}")
        for head, kind, tail in zip(
            RNG.integers(0, 30, 200), RNG.integers(0, 3, 200), RNG.integers(0, 30, 200), strict=True
        )
    }
)
RNG.shuffle(TRIPLES)


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Read only a few lines at a time, so that every test crosses the borders of blocks."""
    monkeypatch.setattr(blocks, "__defaults__", (20,))


def triples_in(path):
    """The triples of a converted graph by their names, sorted."""
    graph, nodes, types = hpcgnn.to_pyg(path), hpcgnn.names(path), hpcgnn.names(path, "edge_types")
    assert len(nodes) == len(set(nodes)) == graph.num_nodes
    ends = zip(*graph.edge_index.tolist(), graph.edge_type.tolist(), strict=True)
    return sorted((nodes[head], types[kind], nodes[tail]) for head, tail, kind in ends)


def write_csv(path, rows, header=("head", "relation", "tail"), **options):
    with path.open("w", newline="") as file:
        writer = csv.writer(file, **options)
        writer.writerows([header, *rows] if header else rows)
    return f"edgelist:{path}"


@pytest.mark.usefixtures("tiny_blocks")
@pytest.mark.parametrize(("delimiter", "header"), [(",", True), ("\t", False)])
def test_triples_of_names(tmp_path, delimiter, header):
    columns = {"header": ("head", "relation", "tail") if header else None, "delimiter": delimiter}
    if delimiter == "\t":
        columns |= {"quoting": csv.QUOTE_NONE, "quotechar": None}
    source = write_csv(tmp_path / "kg.csv", TRIPLES, **columns)
    meta, *_ = converted(source, tmp_path)
    assert not meta.weighted
    assert triples_in(tmp_path / "out.h5") == sorted(TRIPLES)
    assert hpcgnn.names(tmp_path / "out.h5", "edge_types") == sorted(RELATIONS)
    assert "type 0 is 'knows', 1 is 'likes, very much'" in " ".join(notes_of(source, tmp_path))
    shown = CliRunner().invoke(show, [str(tmp_path / "out.h5")])
    assert re.search(r"type \d+, lives in", shown.output)


SETS = {"train": TRIPLES[:120], "valid": TRIPLES[120:140], "test": TRIPLES[140:]}


def test_a_folder_of_triples_keeps_its_split(tmp_path):
    """As FB15k-237 and WN18RR are published, without names of columns; with other files beside, and one that is compressed."""
    for name, triples in SETS.items():
        write_csv(tmp_path / f"{name}.csv", triples, header=None)
    (tmp_path / "entities.txt").write_text("a\n")
    (tmp_path / "test.csv.gz").write_bytes(gzip.compress((tmp_path / "test.csv").read_bytes()))
    (tmp_path / "test.csv").unlink()
    assert converted(f"edgelist:{tmp_path}", tmp_path)[0].has_link_split
    assert triples_in(tmp_path / "out.h5") == sorted(TRIPLES)
    assert np.bincount(hpcgnn.to_pyg(tmp_path / "out.h5").edge_split).tolist() == [*map(len, SETS.values())]
    told = "120 links of train.csv are for training, 20 links of valid.csv for validation"
    assert told in " ".join(notes_of(f"edgelist:{tmp_path}", tmp_path))
    shown = CliRunner().invoke(show, [str(tmp_path / "out.h5")])
    assert re.search(r"validation links +20", shown.output)


def test_a_folder_without_one_of_the_three_files(tmp_path):
    write_csv(tmp_path / "train.csv", TRIPLES)
    write_csv(tmp_path / "valid.csv", TRIPLES)
    wanted = "a folder of links should have one file {}.txt, .tsv or .csv, but it has"
    check_refused(f"edgelist:{tmp_path}", tmp_path, wanted.format("test") + " none")
    write_csv(tmp_path / "test.csv", TRIPLES)
    write_csv(tmp_path / "valid.tsv", TRIPLES)
    check_refused(f"edgelist:{tmp_path}", tmp_path, wanted.format("valid") + " valid.csv and valid.tsv")


def test_the_files_of_a_folder_have_the_same_columns(tmp_path):
    for name in SETS:
        write_csv(tmp_path / f"{name}.csv", [(0, 1, 2), (3, 4, 5)], header=("head", "relation", "tail"))
    write_csv(tmp_path / "test.csv", [("a", "b", "c")], header=("head", "relation", "tail"))
    check_refused(f"edgelist:{tmp_path}", tmp_path, "test.csv, line 2: 'a,b,c': node id 'a' is not a whole number")


def test_merged_links_are_for_training_if_one_of_them_is(tmp_path):
    edges, split = [[0, 0, 1, 2, 3], [1, 1, 2, 1, 0]], [2, 0, 1, 2, 1]
    np.savez(tmp_path / "graph.npz", num_nodes=4, edge_index=np.array(edges), edge_split=np.array(split))

    def stored(options):
        convert(f"npz:{tmp_path}/graph.npz", tmp_path / "out.h5", options)
        with h5py.File(tmp_path / "out.h5") as file:
            edges = file["edges"]
            targets = np.repeat(np.arange(4), np.diff(edges["indptr"][:]))
            ends = zip(edges["indices"][:].tolist(), targets.tolist(), strict=True)
            return sorted(zip(ends, edges["split"][:].tolist(), strict=True))

    assert stored(ConvertOptions()) == [((0, 1), 0), ((0, 1), 2), ((1, 2), 1), ((2, 1), 2), ((3, 0), 1)]
    found = stored(ConvertOptions(undirected=True, self_loops=True, force=True))
    assert found == [((0, 0), 0), ((0, 1), 0), ((0, 3), 3), ((1, 0), 0), ((1, 1), 0), ((1, 2), 1), ((2, 1), 2),
                     ((2, 2), 0), ((3, 0), 1), ((3, 3), 0)]  # fmt: skip
    np.savez(tmp_path / "graph.npz", num_nodes=4, edge_index=np.array(edges), edge_split=np.array([*split[:4], 4]))
    check_refused(
        f"npz:{tmp_path}/graph.npz", tmp_path, "edge_split should be a number for each of the 5 edges: 0 .training"
    )


def test_a_comment_of_names_is_no_edge(tmp_path):
    """``alice bob`` in the first line names columns only if numbers follow."""
    path = tmp_path / "edges.txt"
    path.write_text("alice bob\nbob carol\n")
    meta, edges, *_ = converted(f"edgelist:{path}", tmp_path)
    assert (meta.num_nodes, edges.tolist(), meta.num_edge_types) == (3, [[0, 1], [1, 2]], 0)
    assert hpcgnn.names(tmp_path / "out.h5") == ["alice", "bob", "carol"]
    path.write_text("alice bob\n0 1\n")
    assert converted(f"edgelist:{path}", tmp_path)[0].num_edges == 1
    assert hpcgnn.names(tmp_path / "out.h5") == []
    path.write_text("alice bob 0.5\nbob 1984 2\n")
    meta, edges, *_ = converted(f"edgelist:{path}", tmp_path)
    assert sorted(edges.tolist()) == [[0, 1, 0.5], [1, 2, 2.0]]


def test_names_that_look_like_numbers(tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("76561198000000001 10 00010\n00010 10 76561198000000001\n")
    converted(f"edgelist:{path}?names=yes&type=2", tmp_path)  # as the numbers of WordNet in WN18RR
    assert triples_in(tmp_path / "out.h5") == sorted(
        [("76561198000000001", "10", "00010"), ("00010", "10", "76561198000000001")]
    )


@pytest.mark.usefixtures("tiny_blocks")
def test_types_and_features_by_place(tmp_path):
    rows = np.column_stack([RNG.integers(0, 20, (100, 2)), RNG.integers(0, 4, 100), RNG.normal(size=(100, 3)).round(3)])
    text = [",".join([*(str(int(value)) for value in row[:3]), *map(str, row[3:])]) for row in rows]
    path, options = tmp_path / "edges.csv", "?source=1&target=2&type=3&attr=6,4&weight=5"
    path.write_text("\n".join(text) + "\n")
    converted(f"edgelist:{path}{options}", tmp_path)
    graph = hpcgnn.to_pyg(tmp_path / "out.h5")
    wanted = rows[:, [0, 1, 2, 4, 3, 5]]  # features are in the order of the file
    found = np.column_stack([*graph.edge_index.numpy(), graph.edge_type, graph.edge_weight, graph.edge_attr])
    for each in (wanted, found):
        each[:] = each[np.lexsort(each.T)]
    assert np.allclose(wanted, found, atol=1e-6)


def test_gephis_column_of_directions_is_no_type(tmp_path):
    (tmp_path / "gephi.csv").write_text("Source,Target,Type,Id,Weight\n0,1,Directed,0,2.0\n1,0,Directed,1,1.0\n")
    source = f"edgelist:{tmp_path / 'gephi.csv'}"
    assert converted(source, tmp_path)[0].num_edge_types == 0
    assert converted(f"{source}?type=Type", tmp_path)[0].num_edge_types == 1


WRONG = {
    "kg?": [
        ("head,relation,tail\na,r,b\na,,b\n", "line 3: 'a,,b': the name of the type is empty"),
        ("head,relation,tail\na,r,b\n ,r,b\n", "line 3: ',r,b': the name of the source is empty"),
        ("head,relation,tail\na,1,b\na,r,b\n", "line 3: 'a,r,b': type 'r' is not a whole number, as it is before"),
        ("src,dst,type\n0,1,2000\n", "an edge has type 2000, but there are only 1 edges: number the types from 0"),
        ("src,dst,attr\n0,1,x\n", "line 2: '0,1,x': feature 'x' is not a number"),
        ("a b\nb c d\n", "line 2: 'b c d' has 3 columns, but the lines before have 2"),
    ],
    "kg?type=9": [("0 1 2\n", "type=9 was given, but '0 1 2' has 3 columns")],
    "kg?type=1&source=1": [("0 1 2\n", "column 1 cannot be two of")],
    "kg?attr=size": [("src,dst\n0,1\n", "has no column 'size'; it has src, dst")],
    "kg?names=maybe": [("a b\n", "names=maybe should be yes or no")],
    "kg?nodes=7": [("a b\nb c\n", "nodes=7 was given, but there are 3")],
}


@pytest.mark.parametrize(
    ("options", "text", "sentence"), [(key, *case) for key, cases in WRONG.items() for case in cases]
)
def test_triples_that_are_wrong(tmp_path, options, text, sentence):
    (tmp_path / "kg").write_text(text)
    check_refused(f"edgelist:{tmp_path / options}".removesuffix("?"), tmp_path, sentence)


def test_names_of_some_nodes_and_damaged_names(tmp_path):
    converted(write_csv(tmp_path / "kg.csv", [("ä", "r", "b"), ("b", "r", "日本")]), tmp_path)
    path = tmp_path / "out.h5"
    assert names(path, "nodes", [2, 0, 2]) == ["日本", "ä", "日本"]
    assert names(path, "classes") == []
    with pytest.raises(hpcgnn.HpcgnnError, match="has 3 names, with the numbers from 0 to 2"):
        names(path, "nodes", [3])
    with pytest.raises(hpcgnn.HpcgnnError, match="kind must be one of nodes, edge_types, classes"):
        names(path, "edges")
    with h5py.File(path, "r+") as file:
        file["nodes/names_indptr"][1] = 99
    with pytest.raises(hpcgnn.HpcgnnError, match="nodes/names_indptr"):
        names(path)


# -- Parquet -----------------------------------------------------------------------------------------------------------


def test_parquet_of_names(tmp_path):
    """In a dictionary, as the columns of a table may be, and beside what is no table of edges."""
    pa = require_module("pyarrow")
    from pyarrow import parquet

    columns = dict(zip(("head", "relation", "tail"), map(list, zip(*TRIPLES, strict=True)), strict=True))
    columns = {name: pa.array(values).dictionary_encode() for name, values in columns.items()}
    parquet.write_table(pa.table(columns), tmp_path / "kg.parquet", row_group_size=37)
    converted(f"parquet:{tmp_path / 'kg.parquet'}", tmp_path)
    assert triples_in(tmp_path / "out.h5") == sorted(TRIPLES)
    for relation, tail, sentence in (
        (0, 1, "one is text and one is numbers"),
        ("", "b", "has an edge with an empty name"),
    ):
        parquet.write_table(pa.table({"head": ["a"], "relation": [relation], "tail": [tail]}), tmp_path / "kg.parquet")
        check_refused(f"parquet:{tmp_path / 'kg.parquet'}", tmp_path, sentence)


# -- RDF ---------------------------------------------------------------------------------------------------------------

NTRIPLES = r"""# a comment
<http://a.org/s> <http://a.org/p> <http://a.org/o> .
<http://a.org/s><http://a.org/q>"text with \"quotes\", \u00e9 and > < ."@EN-gb.   # another

_:b1.x	<http://a.org/p>	"1"^^<http://www.w3.org/2001/XMLSchema#integer>	.
<http://a.org/\u006f> <http://a.org/p> "1" .
_:b1.x <http://a.org/q> "text with \u0022quotes\u0022, é and > < ."@en-GB .
<http://a.org/s> <http://a.org/p> "" .
"""
START, END, P, Q = (f"http://a.org/{letter}" for letter in "sopq")
TEXT = '"text with "quotes", é and > < ."@en-gb'
MEANT = [
    (START, P, END), (START, Q, TEXT), ("_:b1.x", P, '"1"^^<http://www.w3.org/2001/XMLSchema#integer>'), (END, P, '"1"'),
    ("_:b1.x", Q, TEXT), (START, P, '""'),
]  # fmt: skip


@pytest.mark.usefixtures("tiny_blocks")
@pytest.mark.parametrize(("pack", "line_end"), [(bytes, "\r\n"), (gzip.compress, "\n")])
def test_ntriples(tmp_path, pack, line_end):
    (tmp_path / "g.nt").write_bytes(pack(NTRIPLES.replace("\n", line_end).encode()))
    meta, *_ = converted(f"rdf:{tmp_path / 'g.nt'}", tmp_path)
    assert triples_in(tmp_path / "out.h5") == sorted(MEANT)
    assert (meta.num_nodes, meta.num_edge_types) == (7, 2)
    assert notes_of(f"rdf:{tmp_path / 'g.nt'}", tmp_path)[0].endswith("4 nodes are literals")


@pytest.mark.parametrize(
    "line",
    [
        '<http://a/s> <http://a/p> "no end .',
        "<http://a/s> <http://a/p> <o> .",
        "<http://a/s> <http://a/ p> <http://a/o> .",
        "<http://a/s> _:p <http://a/o> .",
        '"s" <http://a/p> <http://a/o> .',
        r'<http://a/s> <http://a/p> "bad \x escape" .',
        '<http://a/s> <http://a/p> "x"@1 .',
        "@prefix a: <http://a/> .",
        "<http://a/s> <http://a/p> <http://a/o> . <http://a/s> <http://a/p> <http://a/o> .",
        "<http://a/s> <http://a/p> _:.b .",
    ],
)
def test_lines_that_are_no_triple(tmp_path, line):
    (tmp_path / "g.nt").write_text(f"{NTRIPLES}{line}\n")
    check_refused(f"rdf:{tmp_path / 'g.nt'}", tmp_path, r"g.nt, line 9: .* is not a triple of N-Triples, <subject>")


def labelled(
    tmp_path, train="person\tid\tlabel_group\nA\t1.0\tred\nB\t2.0\tblue\n", test="id\tlabel_group\tperson\n3\tred\tC\n"
):
    triples = "".join(f"<http://a/{a}> <http://a/r> <http://a/{b}> .\n" for a, b in ("AB", "BC", "CD"))
    (tmp_path / "g.nt").write_text(triples)
    (tmp_path / "train.tsv").write_text(train.replace("A\t", "http://a/A\t").replace("B\t", "http://a/B\t"))
    (tmp_path / "test.tsv").write_text(test.replace("\tC", "\thttp://a/C"))
    return f"rdf:{tmp_path / 'g.nt'}?train={tmp_path / 'train.tsv'}&test={tmp_path / 'test.tsv'}"


def test_labels_of_rdf(tmp_path):
    source = labelled(tmp_path)
    _, _, _, y, masks = converted(source, tmp_path)
    assert y.tolist() == [1, 0, 1, -1]
    assert hpcgnn.names(tmp_path / "out.h5", "classes") == ["blue", "red"]
    assert [np.flatnonzero(masks[name]).tolist() for name in ("train_mask", "val_mask", "test_mask")] == [
        [0, 1],
        [],
        [2],
    ]
    converted(source, tmp_path, labels="random:3")
    assert hpcgnn.names(tmp_path / "out.h5", "classes") == []


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        ("person\tlabel_x\nA\tred\nZ\tred\n", r"train.tsv, line 3: no node of the graph has the name 'Z'"),
        ("person\tlabel_x\nZ\tred\n", r"train.tsv, line 2: no node of the graph has the name 'Z' or 'red'"),
        ("person\tgroup\nA\tred\n", "has 0 columns whose name begins with label; it has 'person', 'group'"),
        ("person\tlabel_x\tlabel_y\nA\tred\t1\n", "has 2 columns whose name begins with label"),
        ("person\tlabel_x\nA\tred\t1\n", "line 2 has 3 columns, but its first line has 2"),
        ("person\tlabel_x\nA\tred\nA\tblue\n", "line 3: its node has the label 'red' in another line"),
        ("", "has 0 columns whose name begins with label; it has none"),
    ],
)
def test_tables_of_labels_that_are_wrong(tmp_path, train, sentence):
    check_refused(labelled(tmp_path, train), tmp_path, sentence)
    check_refused(f"rdf:{tmp_path / 'g.nt'}?label=x", tmp_path, "label=x is a column of the tables train, val and test")
