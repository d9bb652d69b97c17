"""Answers to questions on any number of ranks are the best of all nodes that one process scores one by one."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import small_graphs

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.partition.options import PartitionOptions
from hpcgnn.partition.partitioner import partition
from hpcgnn.sources.convert import ConvertOptions, convert
from hpcgnn.train import checkpoint, ranking
from hpcgnn.train.answers import Questions, answer, read_questions, write_answers
from hpcgnn.train.predict import score_pairs
from hpcgnn.train.run_folder import RunFolder
from hpcgnn.world.thread_world import on_threads, one_rank

RNG = np.random.default_rng(2)
NAMES = [f"node, {number}" for number in RNG.permutation(70)]
RELATIONS = ["knows", "likes", "7"]
TRIPLES = sorted({(NAMES[h], RELATIONS[r], NAMES[t]) for h, r, t in RNG.integers(0, (70, 3, 70), (400, 3))})


def train(parts: Path, **settings: object) -> Path:
    """The checkpoint of a short run, which P ranks read."""

    def run(world):
        split = hpcgnn.split_links(hpcgnn.load(parts, world, any_ranks=True))
        config = hpcgnn.ModelConfig(layers=1, hidden=8, **settings)
        trainer = hpcgnn.Trainer(
            hpcgnn.build_model(config, split.train),
            split,
            hpcgnn.TrainConfig(epochs=2),
            run=RunFolder(parts.with_name("run")),
        )
        trainer.fit()

    on_threads(1, run)
    return parts.with_name("run") / "checkpoints" / "last.pt"


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """``parts.h5`` of triples with names, and a checkpoint."""
    folder = tmp_path_factory.mktemp("named")
    with (folder / "triples.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("head", "relation", "tail"), *TRIPLES])
    convert(f"edgelist:{folder}/triples.csv?names=yes", folder / "graph.h5", ConvertOptions(features="random:4"))
    partition(one_rank(), folder / "graph.h5", folder / "parts.h5", PartitionOptions(3, method="random"))
    return folder / "parts.h5", train(folder / "parts.h5", model="rgcn", decoder="distmult")


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """A graph whose nodes have types, and a checkpoint."""
    parts = small_graphs.in_parts(tmp_path_factory.mktemp("typed") / "parts.h5", small_graphs.with_types(), 3)
    return parts, train(parts, model="rgcn", decoder="transe", embed="venue,term")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A graph without types, of which part 1 has no node, and a checkpoint."""
    parts, graph = tmp_path_factory.mktemp("plain") / "parts.h5", small_graphs.random_multigraph()
    small_graphs.write_parts(parts, graph, small_graphs.random_parts(graph.num_nodes, 3, empty=1), 3)
    return parts, train(parts, model="gcn", decoder="mlp")


def answered(case, ranks: int, asked: Questions, top: int, **options: bool):
    """The answers, which are the same on all ranks."""
    parts, path = case

    def program(world):
        graph = hpcgnn.load(parts, world, any_ranks=True)
        return answer(graph, checkpoint.read(world, path, None), asked, top, **options)

    found = on_threads(ranks, program)
    assert all(np.array_equal(one, other) for each in found for one, other in zip(found[0], each, strict=True))
    return found[0]


def by_hand(case, asked: Questions, top: int, kinds=None, known=frozenset()):
    """(ids, scores) of each question, from the scores of all pairs that one rank computes."""
    parts, path = case
    graph = hpcgnn.load(parts, one_rank(), any_ranks=True)
    content, nodes = checkpoint.read(one_rank(), path, None), graph.meta.num_nodes
    for head, relation in zip(asked.heads.tolist(), asked.relations.tolist(), strict=True):
        tails = [t for t in range(nodes) if t != head and (head, relation, t) not in known]
        if kinds is not None:
            tails = [t for t in tails if kinds[t] == graph.meta.edge_types[relation].destination]
        columns = [np.full(len(tails), head), tails] + [np.full(len(tails), relation)] * bool(graph.meta.num_edge_types)
        scores = score_pairs(graph, content, np.stack(columns, axis=1)).numpy()
        best = np.lexsort((tails, -scores))[:top]
        yield np.array(tails)[best], scores[best]


def check(found, wanted, top):
    """Scores are the same up to rounding, and so are the ids whose scores are apart."""
    for ids, scores, (its_ids, its_scores) in zip(*found, wanted, strict=True):
        count = its_ids.size
        assert scores[:count] == pytest.approx(its_scores, rel=1e-4, abs=1e-6)
        assert (ids[count:] == -1).all()
        assert count < top or (np.diff(its_scores) < 0).any()
        apart = np.abs(np.diff(its_scores)) > 1e-4
        sure = np.concatenate(([True], apart)) & np.concatenate((apart, [count < top]))
        assert (ids[:count] == its_ids)[sure].all()


def asked_of(graph, heads, relations) -> Questions:
    return Questions([()] * len(heads), np.array(heads), np.array(relations))


@pytest.mark.parametrize(("ranks", "new_only"), [(1, False), (2, True), (4, True)])
def test_answers_are_the_best_of_all_nodes(named, monkeypatch, ranks, new_only):
    monkeypatch.setattr("hpcgnn.train.answers.CHUNK", 4)
    monkeypatch.setattr("hpcgnn.train.answers.BLOCK", 16)
    monkeypatch.setattr(ranking, "BLOCK", 16)
    number = {name: place for place, name in enumerate(hpcgnn.names(named[0]))}
    kind = {name: place for place, name in enumerate(hpcgnn.names(named[0], "edge_types"))}
    triples = {(number[h], kind[r], number[t]) for h, r, t in TRIPLES}
    heads, relations, _ = np.array(sorted(triples)[:11]).T
    asked, known = asked_of(None, heads, relations), frozenset(triples) if new_only else frozenset()
    check(answered(named, ranks, asked, 12, new_only=new_only), by_hand(named, asked, 12, known=known), 12)


@pytest.mark.parametrize("ranks", [1, 4])
def test_answers_have_the_type_of_the_targets(typed, ranks):
    meta = small_graphs.with_types().meta()
    kinds, relations = meta.node_types_of(np.arange(meta.num_nodes)), np.arange(6)
    asked = asked_of(None, meta.node_type_offsets[[each.source for each in meta.edge_types]], relations)
    found = answered(typed, ranks, asked, 25)
    check(found, by_hand(typed, asked, 25, kinds), 25)
    assert (found[0][4] >= 0).sum() == 1, "there is one venue"


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_graph_without_types(plain, ranks):
    asked = asked_of(None, [3, 58, 0], [0, 0, 0])
    check(answered(plain, ranks, asked, 7), by_hand(plain, asked, 7), 7)


@pytest.mark.parametrize("ranks", [1, 3])
def test_questions_and_answers_have_names(named, tmp_path, ranks):
    asked, out = tmp_path / "questions.csv", tmp_path / "answers.csv"
    with asked.open("w", newline="") as file:
        csv.writer(file).writerows([(NAMES[5], "likes"), (NAMES[69], "7"), (NAMES[5], "knows")])

    def program(world):
        graph = hpcgnn.load(named[0], world, any_ranks=True)
        read = read_questions(graph, asked)
        found = answer(graph, checkpoint.read(world, named[1], None), read, 3)
        write_answers(graph, read, found, out)
        return read, found

    read, (ids, scores) = on_threads(ranks, program)[-1]
    names = hpcgnn.names(named[0])
    assert [names[head] for head in read.heads] == [NAMES[5], NAMES[69], NAMES[5]]
    assert [hpcgnn.names(named[0], "edge_types")[each] for each in read.relations] == ["likes", "7", "knows"]
    with out.open(newline="") as file:
        header, *lines = csv.reader(file)
    assert header == ["head", "relation", "tail", "score"]
    assert [line[:3] for line in lines] == [
        [*words, names[node]] for words, row in zip(read.texts, ids, strict=True) for node in row
    ]
    assert [float(line[3]) for line in lines] == pytest.approx(scores.ravel(), rel=1e-5)


FORMULAS = ["\rreturn", "=1+1", "+cmd|x", "-2+3", "@SUM(1,2)", "\ttab", "'=x", "''-y", "-", "-1e", "\uff1d1"]
HARMLESS = ["a=1", "-5", "+3.25", "-1e-05", "'s-Hertogenbosch", "'-5", "x"]


def test_no_name_is_a_formula_of_a_spreadsheet(named, tmp_path):
    """It gets an apostrophe in answers, which questions leave out. Numbers and scores stay numbers."""
    parts, out = Path(shutil.copy(named[0], tmp_path / "parts.h5")), tmp_path / "answers.csv"
    with h5py.File(parts, "r+") as file:
        nodes = [*FORMULAS, *HARMLESS, *NAMES[18:]]
        for dataset, told in (("nodes/names", nodes), ("edges/type_names", ["=a", "b", "-7"])):
            del file[dataset], file[f"{dataset}_indptr"]
            file[dataset] = np.frombuffer("".join(told).encode(), np.uint8)
            file[f"{dataset}_indptr"] = np.cumsum([0, *(len(name.encode()) for name in told)])
    graph = hpcgnn.load(parts, one_rank(), any_ranks=True)
    nodes = np.arange(18)
    asked = Questions([(name, "=a") for name in [*FORMULAS, *HARMLESS]], nodes, np.zeros(18, np.int64))
    write_answers(graph, asked, (nodes[::-1, None], np.full((18, 1), -0.25)), out)
    with out.open(newline="") as file:
        _, *lines = csv.reader(file)
    as_text = [*(f"'{name}" for name in FORMULAS), *HARMLESS]
    assert lines == [[*each, "-0.25"] for each in zip(as_text, ["'=a"] * 18, as_text[::-1], strict=True)]
    with (tmp_path / "questions.csv").open("w", newline="") as file:
        csv.writer(file).writerows(line[:2] for line in lines[1:])  # a carriage return is a line break in questions
    assert read_questions(graph, tmp_path / "questions.csv").heads.tolist() == nodes[1:].tolist()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("nobody,likes\n", "has no node 'nobody': its nodes have names that hpcgnn.names lists"),
        (f'"{NAMES[0]}",hates\n', "has no type of edges 'hates': it has types 0 to 2: 7, knows, likes"),
        (f'"{NAMES[0]}"\n', "must have a head and a type of edges, with a comma between them in each line"),
    ],
)
def test_other_questions_are_one_sentence(named, tmp_path, content, sentence):
    (tmp_path / "questions.csv").write_text(content)
    graph = hpcgnn.load(named[0], one_rank(), any_ranks=True)
    with pytest.raises(HpcgnnError, match=sentence):
        read_questions(graph, tmp_path / "questions.csv")


def test_numbers_name_nodes_of_a_graph_without_names(plain, typed, tmp_path):
    path = tmp_path / "questions.csv"
    path.write_text("4\n59\n")
    graph = hpcgnn.load(plain[0], one_rank(), any_ranks=True)
    assert read_questions(graph, path).heads.tolist() == [4, 59]
    path.write_text("60\n")
    with pytest.raises(HpcgnnError, match="has no node '60': its nodes have numbers from 0 to 59"):
        read_questions(graph, path)
    path.write_text("4, about\n31, author__writes__paper\n0,2\n")
    graph = hpcgnn.load(typed[0], one_rank(), any_ranks=True)
    assert read_questions(graph, path).relations.tolist() == [5, 1, 2]
    path.write_text("4,author__writes__paper\n")
    with pytest.raises(
        HpcgnnError, match="edges of type 'author__writes__paper' do not begin at nodes of the type of '4'"
    ):
        read_questions(graph, path)


def test_the_command_answers(named, mpi_ranks, tmp_path):
    parts, path = named
    (tmp_path / "questions.csv").write_text(f'"{NAMES[1]}",likes\n"{NAMES[2]}",knows\n')
    asked = ["predict", parts, path, "--questions", tmp_path / "questions.csv", "--out", tmp_path / "answers.csv"]
    mpi_ranks(3).command(*asked, "--top", 4, "--new-only")
    lines = (tmp_path / "answers.csv").read_text().splitlines()
    assert len(lines) == 9
    for wrong, sentence in (([*asked, "--force", "--pairs", "x.txt"], "give one of them"),
                            (["predict", parts, path, "--out", "x.h5", "--top", 3], "give --questions as well")):  # fmt: skip
        refused = mpi_ranks(1).command(*wrong, check=False)
        assert refused.codes == [2]
        assert sentence in refused.stderr
