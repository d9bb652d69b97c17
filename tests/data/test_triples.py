"""Triples with names in text, Parquet and RDF: what the matrix of sources does not write, and refusals."""

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
from hpcgnn.sources.text import blocks


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


TRIPLES = [("ann", "knows", "bob"), ("ann", "lives in", "town, 7"), ("bob", "likes, very much", "ann")]
QUOTED = 'head,relation,tail\nann,knows,bob\nann,lives in,"town, 7"\nbob,"likes, very much",ann\n'


@pytest.mark.usefixtures("tiny_blocks")
@pytest.mark.parametrize("text", [QUOTED, "".join("\t".join(triple) + "\n" for triple in TRIPLES)])
def test_names_may_have_commas(tmp_path, text):
    (tmp_path / "kg").write_text(text)
    assert "type 0 is 'knows', 1 is 'likes, very much'" in " ".join(notes_of(f"edgelist:{tmp_path / 'kg'}", tmp_path))
    assert triples_in(tmp_path / "out.h5") == TRIPLES
    shown = CliRunner().invoke(show, [str(tmp_path / "out.h5")])
    assert re.search(r"edge_types: lives in", shown.output)


def test_parquet_of_names_in_a_dictionary(tmp_path):
    pa = require_module("pyarrow")
    from pyarrow import parquet

    source = f"parquet:{tmp_path / 'kg.parquet'}"
    columns = dict(zip(("head", "relation", "tail"), map(list, zip(*TRIPLES, strict=True)), strict=True))
    columns = {name: pa.array(values).dictionary_encode() for name, values in columns.items()}
    parquet.write_table(pa.table(columns), tmp_path / "kg.parquet", row_group_size=2)
    converted(source, tmp_path)
    assert triples_in(tmp_path / "out.h5") == TRIPLES
    for relation, tail, sentence in (
        (0, 1, "one is text and one is numbers"),
        ("", "b", "has an edge with an empty name"),
    ):
        parquet.write_table(pa.table({"head": ["a"], "relation": [relation], "tail": [tail]}), tmp_path / "kg.parquet")
        check_refused(source, tmp_path, sentence)


# -- folders of links --------------------------------------------------------------------------------------------------

SETS = {"train.csv": "a,r,b\nb,r,c\n", "valid.csv": "c,s,a\nc,r,a\n", "test.csv": "a,s,c\n"}


def write_sets(folder, changes):
    for name, text in (SETS | changes).items():
        if text:
            (folder / name).write_text(text)
    return f"edgelist:{folder}"


def test_a_folder_of_triples_keeps_its_split(tmp_path):
    """As FB15k-237 and WN18RR are published, without names of columns; with other files beside, and one that is compressed."""
    (tmp_path / "test.csv.gz").write_bytes(gzip.compress(SETS["test.csv"].encode()))
    source = write_sets(tmp_path, {"test.csv": "", "entities.txt": "a\n"})
    told = "2 links of train.csv are for training, 2 links of valid.csv for validation"
    assert told in " ".join(notes_of(source, tmp_path))
    assert np.bincount(hpcgnn.to_pyg(tmp_path / "out.h5").edge_split).tolist() == [2, 2, 1]
    shown = CliRunner().invoke(show, [str(tmp_path / "out.h5")])
    assert re.search(r"link_split: validation +2", shown.output)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"test.csv": ""}, "a folder of links should have one file test.txt, .tsv or .csv, but it has none"),
        ({"valid.tsv": "a\tr\tb\n"}, "one file valid.txt, .tsv or .csv, but it has valid.csv and valid.tsv"),
        ({"train.csv": "h,r,t\n0,1,2\n", "valid.csv": "h,r,t\n0,1,2\n", "test.csv": "h,r,t\na,b,c\n"},
         "test.csv, line 2: 'a,b,c': node id 'a' is not a whole number"),
    ],
)  # fmt: skip
def test_a_folder_that_is_wrong(tmp_path, changes, sentence):
    check_refused(write_sets(tmp_path, changes), tmp_path, sentence)


# -- names or numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "options", "nodes", "wanted"),
    [
        ("alice bob\nbob carol\n", "", ["alice", "bob", "carol"], [[0, 1], [1, 2]]),
        ("alice bob\n0 1\n", "", [], [[0, 1]]),  # a first line names columns only if numbers follow
        ("alice bob 0.5\nbob 1984 2\n", "", ["alice", "bob", "1984"], [[0, 1, 0.5], [1, 2, 2]]),
        # As the numbers of WordNet in WN18RR.
        ("7619 10 00010\n00010 10 7619\n", "?names=yes&type=2", ["7619", "00010"], [[1, 0], [0, 1]]),
        ("1 0 0 .5 9 .25\n", "?source=1&target=2&type=3&attr=6,4&weight=5&nodes=2", [], [[1, 0, 9]]),
        ("Source,Target,Type,Id,Weight\n0,1,Directed,0,2.0\n", "", [], [[0, 1, 2]]),  # of Gephi
        ("Source,Target,Type,Id,Weight\n0,1,Directed,0,2.0\n", "?type=Type", [], [[0, 1, 2]]),
    ],
)
def test_what_is_a_name_and_what_a_number(tmp_path, text, options, nodes, wanted):
    (tmp_path / "edges").write_text(text)
    meta, edges, *_ = converted(f"edgelist:{tmp_path / 'edges'}{options}", tmp_path)
    assert edges.tolist() == wanted
    assert hpcgnn.names(tmp_path / "out.h5") == nodes
    assert bool(meta.num_edge_types) == ("type" in options)
    if "attr" in options:
        assert hpcgnn.to_pyg(tmp_path / "out.h5").edge_attr.tolist() == [[0.5, 0.25]], "in the order of the file"


WRONG = {
    "kg?": [
        ("head,relation,tail\na,r,b\na,,b\n", "line 3: 'a,,b': the name of the type is empty"),
        ("head,relation,tail\na,r,b\n ,r,b\n", "line 3: ',r,b': the name of the source is empty"),
        ("head,relation,tail\na,1,b\na,r,b\n", "line 3: 'a,r,b': type 'r' is not a whole number, as it is before"),
        ("src,dst,type\n0,1,2000\n", "an edge has type 2000, but there are only 1 edges: number the types from 0"),
        ("src,dst,attr\n0,1,x\n", "line 2: '0,1,x': feature 'x' is not a number"),
        ('a,r,b\n"two\nlines",r,b\n', "the line '\"two' ends inside of quotes, and a name has no line breaks"),
        ('Source,Target\n"a\nb",c\nd,e\n', "the line '\"a' ends inside of quotes"),
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
    (tmp_path / "kg.csv").write_text("head,relation,tail\nä,r,b\nb,r,日本\n")
    converted(f"edgelist:{tmp_path / 'kg.csv'}", tmp_path)
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
    assert notes_of(f"rdf:{tmp_path / 'g.nt'}", tmp_path)[0].endswith("4 nodes are literals")
    assert triples_in(tmp_path / "out.h5") == sorted(MEANT)


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
        r'<http://a/s> <http://a/p> "half \uD800" .',
        r"<http://a/s> <http://a/\U0000dfff> <http://a/o> .",
        r'<http://a/s> <http://a/p> "\U00110000" .',
    ],
)
def test_lines_that_are_no_triple(tmp_path, line):
    (tmp_path / "g.nt").write_text(f"{NTRIPLES}{line}\n")
    check_refused(f"rdf:{tmp_path / 'g.nt'}", tmp_path, r"g.nt, line 9: .* is not a triple of N-Triples, <subject>")


def labelled(tmp_path, train):
    (tmp_path / "g.nt").write_text("<n:A> <n:r> <n:B> .\n<n:B> <n:r> <n:C> .\n<n:C> <n:r> <n:D> .\n")
    (tmp_path / "train.tsv").write_text(train)
    (tmp_path / "test.tsv").write_text("id\tlabel_group\tperson\n3\tred\tn:C\n")
    return f"rdf:{tmp_path / 'g.nt'}?train={tmp_path / 'train.tsv'}&test={tmp_path / 'test.tsv'}"


def test_labels_of_rdf_have_names(tmp_path):
    source = labelled(tmp_path, "person\tid\tlabel_group\nn:A\t1.0\tred\nn:B\t2.0\tblue\n")
    assert converted(source, tmp_path)[3].tolist() == [1, 0, 1, -1]
    assert hpcgnn.names(tmp_path / "out.h5", "classes") == ["blue", "red"]
    converted(source, tmp_path, labels="random:3")
    assert hpcgnn.names(tmp_path / "out.h5", "classes") == []


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        ("person\tlabel_x\nn:A\tred\nZ\tred\n", r"train.tsv, line 3: no node of the graph has the name 'Z'"),
        ("person\tlabel_x\nZ\tred\n", r"train.tsv, line 2: no node of the graph has the name 'Z' or 'red'"),
        ("person\tgroup\nn:A\tred\n", "has 0 columns whose name begins with label; it has 'person', 'group'"),
        ("person\tlabel_x\tlabel_y\nn:A\tred\t1\n", "has 2 columns whose name begins with label"),
        ("person\tlabel_x\nn:A\tred\t1\n", "line 2 has 3 columns, but its first line has 2"),
        ("person\tlabel_x\nn:A\tred\nn:A\tblue\n", "line 3: its node has the label 'red' in another line"),
        ("", "has 0 columns whose name begins with label; it has none"),
    ],
)
def test_tables_of_labels_that_are_wrong(tmp_path, train, sentence):
    check_refused(labelled(tmp_path, train), tmp_path, sentence)
    check_refused(f"rdf:{tmp_path / 'g.nt'}?label=x", tmp_path, "label=x is a column of the tables train, val and test")
