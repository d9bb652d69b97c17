"""Specifications: the runs to which they expand, and a sentence with the line for each error."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up import specified

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.study.axes import filled
from hpcgnn.lab.study.catalogue import Document, Place

SMALL = """\
name = "small"
kind = "train"
seeds = [0, 1]

[axes]
graph = "digits"
ranks = [1, 2]

[settings]
epochs = 3
"""
DIGITS = 'kind = "train"\n[axes]\ngraph = "digits"\n'


def test_product_and_lists(tmp_path: Path) -> None:
    text = '[[configurations]]\nname = "exact"\n[[configurations]]\nname = "few"\nbits = [2, "adaqp"]\nranks = 2\n'
    study = specified(tmp_path, SMALL + text)
    first = [run.configuration for run in study.runs if run.round == (0, 0)]
    exact, few = [("exact", 1, "32"), ("exact", 2, "32")], [("few", 2, "2"), ("few", 2, "adaqp")]
    assert [(each["name"], each["ranks"], each["bits"]) for each in first] == exact + few
    assert len({run.key for run in study.runs}) == len(study.runs) == 8
    assert study.product == ()
    assert study.runs[0].flags == ("--epochs", "3", "--seed", "0")
    usual = "graph ranks threads ranks_per_node hosts rate partitioner objective strategy bits staleness compute model hidden"
    assert {*usual.split(), "layers", "device", "seed", "repeat", "epochs"} <= first[0].keys()


def test_where_ranks_run(tmp_path: Path) -> None:
    text = '[[configurations]]\nrate = "1gbit"\nranks_per_node = [1, 2]\n[[configurations]]\nhosts = 4\n'
    places = [run.place for run in specified(tmp_path, SMALL.replace("[1, 2]", "4") + text).runs if run.round == (0, 0)]
    found = [(place.hosts, place.ranks_per_node, place.rate) for place in places]
    assert found == [(4, 1, "1gbit"), (2, 2, "1gbit"), (4, 1, "unlimited")]


def test_weak_graphs_grow(tmp_path: Path) -> None:
    text = SMALL.replace('"train"', '"weak"').replace('"digits"', '"sbm:nodes={500 * ranks},blocks={2 + log2(ranks)}"')
    found = {run.graph.source for run in specified(tmp_path, text).runs}
    assert found == {"sbm:nodes=500,blocks=2", "sbm:nodes=1000,blocks=3"}


def test_named_graphs_have_options(tmp_path: Path) -> None:
    text = SMALL.replace('"digits"', '"split"')
    text += '[graphs.split]\nsource = "digits"\nsplit = "random:0.6,0.2,0.2,{seed}"\nundirected = true\n'
    study = specified(tmp_path, text)
    assert study.runs[0].graph.options == ("--split", "random:0.6,0.2,0.2,0", "--undirected")
    assert len({run.graph.name for run in study.runs}) == 2, "a split for each seed"


@pytest.mark.parametrize(
    ("change", "to", "line", "sentence"),
    [
        ("epochs = 3", "epoch = 3", 10, "there is no axis or setting epoch: did you mean epochs?"),
        ("epochs = 3", 'epochs = "many"', 10, "epochs must be a whole number, not 'many'"),
        ("epochs = 3", "epochs = -1", 10, "epochs must be at least"),
        ("epochs = 3", "heads = 4", 10, "--heads is not used by sage"),
        ("epochs = 3", "epochs = [3, 4]", 10, "epochs must be a whole number, not [3, 4]"),
        ("ranks = [1, 2]", "ranks = [1, 0]", 7, "ranks must be at least 1"),
        ("ranks = [1, 2]", "ranks = []", 7, "ranks has no value"),
        ("ranks = [1, 2]", "ranks = 3\nranks_per_node = 2", 8, "ranks_per_node = 2 does not divide ranks = 3"),
        ("ranks = [1, 2]", "ranks = 3\nhosts = 2", 8, "hosts = 2 does not divide ranks = 3"),
        ("ranks = [1, 2]", 'ranks = 2\nhosts = 0\nrate = "1gbit"', 9, "rate = '1gbit' needs virtual hosts"),
        ("ranks = [1, 2]", 'rate = "fast"', 7, "fast is not a rate"),
        ("ranks = [1, 2]", 'partitioner = "ldg"\nobjective = "volume"', 7, "partitioner = 'ldg' cannot minimise"),
        ("ranks = [1, 2]", 'partitioner = "cut"', 7, "partitioner must be one of"),
        ("ranks = [1, 2]", 'bits = "3"', 7, "bits must be one of"),
        ("ranks = [1, 2]", 'model = "gat"\nstrategy = "pre"', 8, "--strategy is not used by gat"),
        ("ranks = [1, 2]", "seed = [1, 2]", 7, "seed cannot be an axis"),
        ('graph = "digits"', "", 1, "graph is missing"),
        ('graph = "digits"', 'graph = "digit"', 6, "graph 'digit' is no source"),
        ('graph = "digits"', 'graph = "none.h5"', 6, "there is no file none.h5"),
        ('graph = "digits"', 'graph = "rmat:scale={rank}"', 6, "a formula cannot use rank"),
        ('graph = "digits"', 'graph = "rmat:scale={13 + log2(ranks + 2)}"', 6, "is 14.58 for ranks = 1, but must be a whole"),
        ('kind = "train"', 'kind = "weak"', 6, "graph 'digits' does not grow"),
        ('kind = "train"', 'kind = "scaling"', 2, "kind must be one of train, strong, weak"),
        ("seeds = [0, 1]", "seeds = [0, 0]", 3, "seeds must be different"),
        ("seeds = [0, 1]", "repeat = 2", 3, "a specification has no key repeat"),
        ("epochs = 3", 'epochs = 3\n[[configurations]]\nbits = "2"\n[[configurations]]\nbits = 2', 13, "gives the same run"),
        ("epochs = 3", 'epochs = 3\n[[configurations]]\nbits = "2"\n[[configurations]]\nbit = 2', 14, "there is no axis"),
        ("epochs = 3", 'epochs = 3\n[[report.tables]]\nrows = "rank"\nfigures = []', 11, "no configuration has the axis rank"),
        ("epochs = 3", 'epochs = 3\n[[report.tables]]\nrows = "ranks"\nfigures = "speed"', 11, "there is no figure speed"),
        ("epochs = 3", 'epochs = 3\n[[report.tables]]\nrows = "ranks"\nfigures = "epochs"\nwhere = {bits = "8"}', 14,
         "where chooses no run of this study: none has bits '8'"),
        ("epochs = 3", 'epochs = 3\n[[report.figures]]\nx = "ranks"\nfigure = "epochs_ratio"\nbaseline = {ranks = [4, 8]}', 14,
         "baseline chooses no run of this study: none has ranks [4, 8]"),
        ("epochs = 3", "epochs = 3\n[report]\ntables = 2.5", 12, "must be a list of tables: begin each with [[report.tables]]"),
        ("epochs = 3", "epochs = 3\n[report]\nfigures = {}", 12, "report.figures must be a list of tables"),
        ("epochs = 3", 'epochs = 3\n[graphs.a]\nsource = "digits"\nsplits = "x"', 13, "graphs have no option splits"),
    ],
)  # fmt: skip
def test_mistakes_have_a_line(tmp_path: Path, change: str, to: str, line: int, sentence: str) -> None:
    assert change in SMALL
    with pytest.raises(HpcgnnError) as raised:
        specified(tmp_path, SMALL.replace(change, to))
    said = str(raised.value)
    assert sentence in said
    assert said.startswith(f"{tmp_path}/study.toml, line {line}: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('kind = "bench"\n[axes]\nranks = 2\n', "needs the axis bench"),
        ('kind = "bench"\n[axes]\nbench = "gemm"\nhidden = 3\n', "line 5: hidden has no effect"),
        ('kind = "bench"\n[axes]\nbench = "exchange {parts}"\n', "graph is missing"),
        ('kind = "bench"\n[axes]\nbench = " "\n', "needs the axis bench"),
        ('kind = "prepare"\n[axes]\ngraph = "digits"\nrate = "1gbit"\n', "line 5: rate has no effect"),
        ('kind = "prepare"\n[axes]\ngraph = "digits"\nisa = "avx2"\n', "line 5: isa has no effect"),
        ('kind = "strong"\n[axes]\ngraph = "digits"\nranks = 2\n', "line 5: .* needs several numbers of ranks"),
        ('kind = "strong"\n[axes]\ngraph = "sbm:nodes={9 * ranks}"\nranks = [1, 2]\n', "line 4: .*grows with ranks"),
        (DIGITS + 'bench = "gemm"\n', "line 5: the axis bench needs kind"),
        (DIGITS + 'framework = "pyg"\nranks = 2\n', "trains in one process"),
        (DIGITS + 'framework = "sar"\nranks = 4\nhosts = 2\n', "has one rank on each host"),
        (DIGITS + 'framework = "pyg"\nfanouts = "9,9,9"\n', "fanouts needs framework = \"dgl\", not 'pyg'"),
        (DIGITS + "workers = 1\n", "workers needs framework"),
        ('kind = "bench"\n[axes]\nbench = "gemm"\nbatch_size = 3\n', "batch_size has no effect"),
        (DIGITS + 'isa = "avx3"\n', "line 5: isa must be one of native, avx2"),
        (DIGITS + 'framework = "pyg"\nbits = "2"\n', "line 6: .* does not support bits = '2'"),
        (DIGITS + '[[report.figures]]\nx = "epoch"\nfigure = ["loss"]\n', "figure must be"),
        ("kind = \n", "cannot read .*line 2"),
    ],
)
def test_combinations_that_cannot_be_are_named_with_their_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(HpcgnnError, match=said):
        specified(tmp_path, 'name = "x"\n' + text)


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ((), 1), (("a",), 1), (("t",), 5), (("t", "u"), 5), (("t", "u", "b"), 6), (("t", "u", "none"), 5), (("l", 0), 7),
        (("l", 0, "d"), 8), (("l", 1), 9), (("l", 1, "d"), 10), (("l", 1, "e"), 11), (("l", 2, "e"), 7),
    ],
)  # fmt: skip
def test_lines(tmp_path: Path, place: Place, line: int) -> None:
    path = tmp_path / "lines.toml"
    path.write_text('a = [\n  "b = 1", # [\n  [1],\n]\n[t.u]\nb = { c = 1 }\n[[l]]\n"d" = 1\n[[l]]\nd = "["\ne = 2\n')
    with pytest.raises(HpcgnnError, match=f"line {line}: it is wrong"):
        Document(path).refuse(place, "it is wrong")


@pytest.mark.parametrize(
    "formula", ["ranks.real", "open('x')", "2 ** 9", "(1, 2)", "1 / 0", "log2(0)", "log2(1, 2)", "'a'", ""]
)
def test_formulas_are_arithmetic_alone(formula: str) -> None:
    with pytest.raises(HpcgnnError, match="is not a formula"):
        filled(f"rmat:scale={{{formula}}}", {"ranks": 4})
