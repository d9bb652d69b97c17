"""Links of graphs with types of edges on P ranks: losses, gradients and ranks equal PyG's and those of loops over triples."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_graphs
import torch
from rank_pool import ThreadPool
from ranks import relation_task
from requires import EVERYTHING

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data import whole_check
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.nn.decoders import CLASSES
from hpcgnn.nn.halo import identity
from hpcgnn.partition.options import PartitionOptions
from hpcgnn.partition.partitioner import partition
from hpcgnn.sources.convert import ConvertOptions, convert
from hpcgnn.train.links import links_of
from hpcgnn.train.ranking import FixedCandidates
from hpcgnn.world.thread_world import one_rank

RANKS = (1, 2, 3, 4) if EVERYTHING else (1, 3)  # the last of three has no nodes


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("relations")
    return {ranks: ThreadPool(ranks).run(relation_task.report, folder)[0] for ranks in RANKS}


@pytest.fixture(params=RANKS)
def report(request, reports):
    return reports[request.param]


def cases(report):
    yield from report["decoders"].items()
    yield from ((name, report[name]) for name in ("of_target", "of_split", "reordered", "no_layers"))


def test_loss_and_gradients_equal_pygs(report):
    for name, found in cases(report):
        assert found["loss_error"] < 1e-10, name
        assert found["gradient_error"] < 1e-10, name
        assert found["count_error"] == 0, name
        assert found["exchanges"] == (1 if name == "no_layers" else 3), name


def test_ranks_among_all_nodes_and_among_drawn_ones_equal_those_of_loops(report):
    for name, found in cases(report):
        assert found["metric"] == "mrr"
        assert found["metrics"] == [None, *(pytest.approx(each, rel=1e-12) for each in found["wanted_metrics"])], name
        assert found["ranking"] == pytest.approx(found["wanted_ranking"], rel=1e-12), name
        assert found["metrics"][2] > found["ranking"]["mrr"], "fewer candidates are beaten more often"


def test_ties_count_half(report):
    for name, each in report["ties"].items():
        assert each["found"] == pytest.approx(each["wanted"], rel=1e-12), name


def test_each_triple_is_on_one_side_and_the_model_sees_the_training_side_only(report):
    triples = [tuple(each) for each in report["triples"] if each[0] != each[2]]
    found = report["decoders"]["distmult"]
    sides = [list(map(tuple, side)) for side in found["sides"]]
    assert sum(map(Counter, sides), Counter()) == Counter(triples)
    assert found["messages"] == found["sides"][0]
    ends = [{frozenset((source, target)) for source, _, target in side} for side in sides]
    assert len(set.union(*ends)) == sum(map(len, ends)), "no side has another's ends"


def test_only_the_relations_of_target_are_links_and_nothing_tells_of_held_out_ones(report):
    found = report["of_target"]
    sides = [list(map(tuple, side)) for side in found["sides"]]
    wanted = [tuple(each) for each in report["triples"] if each[0] != each[2] and each[1] in (1, 3)]
    assert sum(map(Counter, sides), Counter()) == Counter(wanted)
    hidden = {frozenset((source, target)) for side in sides[1:] for source, _, target in side}
    others = [tuple(each) for each in report["triples"] if each[0] != each[2] and each[1] not in (1, 3)]
    assert any(frozenset((source, target)) in hidden for source, _, target in others)
    seen = sides[0] + [each for each in others if frozenset((each[0], each[2])) not in hidden]
    assert Counter(map(tuple, found["messages"])) == Counter(seen)


def test_a_given_split_is_kept_and_only_its_training_links_carry_messages(report):
    given = relation_task.with_split(relation_task.graph_of())
    wanted = [[tuple(each) for each, its_set in zip(relation_task.triples_of(given).tolist(), given.edge_split, strict=True)
               if its_set == number and each[0] != each[2]] for number in range(3)]  # fmt: skip
    found = report["of_split"]
    assert [Counter(map(tuple, side)) for side in found["sides"]] == list(map(Counter, wanted))
    assert Counter(map(tuple, found["messages"])) == Counter(wanted[0])
    assert len(given.edge_split) > sum(map(len, wanted)), "reverse links are in no set"


def test_a_rank_may_have_one_link(tmp_path):
    arrays = small_graphs.random_multigraph()
    arrays = replace(arrays, edge_split=(np.arange(arrays.edge_index.shape[1]) == 25).astype(np.uint8))
    graph = small_graphs.on_ranks(one_rank(), arrays, tmp_path / "parts.h5")
    links = links_of(hpcgnn.split_links(graph).validation)
    assert links.triples.T.tolist() == [[arrays.edge_index[0, 25], 0, arrays.edge_index[1, 25]]]
    assert (links.ids.shape, links.targets.of_link.shape) == ((1,), (1,))


def test_shares_of_links_are_refused_for_a_graph_with_a_split(tmp_path):
    graph = small_graphs.on_ranks(one_rank(), relation_task.with_split(relation_task.graph_of()), tmp_path / "parts.h5")
    with pytest.raises(HpcgnnError, match="has a split of its links, which is used: leave --link-split out"):
        hpcgnn.split_links(graph, hpcgnn.LinkConfig(link_split=(0.1, 0.1)))


def test_negatives_are_no_training_triples_and_have_the_relation_of_their_link_at_either_end(report):
    for name, found in cases(report):
        of_targets, of_sources = (list(map(tuple, each)) for each in found["negatives"])
        learned, *held_out = (list(map(tuple, side)) for side in found["sides"])
        assert not set(map(tuple, found["messages"])) & {*of_targets, *of_sources}, name
        assert set.union(*map(set, held_out)) & {*of_targets, *of_sources}, "training knows nothing of held-out links"
        assert any(source == target for source, _, target in of_targets + of_sources), "ranks compare with loops, too"
        assert {each[1:] for each in of_targets} <= {each[1:] for each in learned}
        assert {each[:2] for each in of_sources} <= {each[:2] for each in learned}
        assert 0.95 * 3 * len(learned) <= len(of_targets) + len(of_sources) <= 3 * len(learned)
        assert 0.4 < len(of_sources) / len(of_targets + of_sources) < 0.6, name


def test_negatives_and_candidates_have_the_type_of_the_node_that_they_replace(report):
    found, meta = report["of_kinds"], small_graphs.with_types().meta()
    by_source, by_target, joined = (np.array(each) for each in (*found["negatives"], found["sides"][0]))
    drawn = np.concatenate((by_source, by_target))
    assert set(drawn[:, 1]) == set(joined[:, 1]) == {2, 5}, "both types of edges are links"
    for end, kinds in (
        (0, [each.source for each in meta.edge_types]),
        (2, [each.destination for each in meta.edge_types]),
    ):
        assert (meta.node_types_of(drawn[:, end]) == np.array(kinds)[drawn[:, 1]]).all()
    assert {*meta.node_types_of(by_target[:, 2])} == {1, 3}, "of both types of targets"
    assert len(drawn) > 2.5 * len(joined)
    assert found["pool"][2] == 0 < min(found["pool"][kind] for kind in (0, 1, 3)), "no venue is an end of a link"


def test_ranks_are_those_of_loops_over_nodes_of_the_same_type(report):
    found = report["of_kinds"]
    assert found["ranking"] == pytest.approx(found["wanted_ranking"], rel=1e-12)
    assert found["metrics"] == [None, *(pytest.approx(each, rel=1e-12) for each in found["wanted_metrics"])]
    assert found["ranking"]["mrr"] > found["among_all_types"]["mrr"]


def test_scores_of_pairs_with_a_type_are_pygs(report):
    for name, each in report["pairs"].items():
        assert each["found"] == pytest.approx(each["wanted"], rel=1e-4, abs=1e-5), name
        assert "is a source, a target and a type of edges: give 3 numbers in each line, not 2" in each["refused"][0]
        assert "pairs must be of types of edges 0 to 3, not 4 to" in each["refused"][1]


def test_all_of_it_is_the_same_on_any_number_of_ranks(reports):
    one, *others = reports.values()
    for other in others:
        for (name, mine), (_, theirs) in zip(cases(one), cases(other), strict=True):
            for part in ("sides", "negatives", "messages"):
                assert mine[part] == theirs[part], name
    for other in others:
        for part in ("sides", "negatives", "pool"):
            assert other["of_kinds"][part] == one["of_kinds"][part]
        assert other["of_kinds"]["ranking"] == pytest.approx(one["of_kinds"]["ranking"], rel=1e-12)
    for mine in reports.values():
        assert mine["reordered"]["negatives"] == mine["decoders"]["distmult"]["negatives"]


@pytest.mark.parametrize("form", ["citation", "wikikg", "biokg"])
def test_ranks_among_the_candidates_of_the_graph_are_those_of_ogb(tmp_path, form):
    """The last of three ranks has no nodes."""
    for found in (ThreadPool(ranks).run(relation_task.fixed_candidates, tmp_path, form)[-1] for ranks in (1, 2, 3)):
        assert found["metric"] == "mrr"
        assert found["at_end"] == pytest.approx(found["wanted"][1], rel=1e-12)
        assert found["evaluated"] == [None, *(pytest.approx(each["mrr"], rel=1e-12) for each in found["wanted"])]
        assert found["told"][::3] == ["fixed", "test mrr among fixed candidates", "test hits@10 among fixed candidates"]
        assert found["ties"] == [*(pytest.approx(each, rel=1e-12) for each in found["wanted_ties"]), None]


def test_nodes_with_equal_rows_tie_in_float32(tmp_path):
    decoders = {name: kind(100, relation_task.RELATIONS) for name, kind in CLASSES.items() if name != "mlp"}
    rows = {name: each.embed(torch.randn(1, 100)) for name, each in decoders.items()}
    for ranks in (1, 3):
        found = ThreadPool(ranks).run(relation_task.of_equal_rows, tmp_path, decoders, rows)[0]
        assert found == dict.fromkeys(decoders, pytest.approx((1 / (1 + 20 / 2) + 1 / (1 + 17 / 2)) / 2, rel=1e-12))


def test_candidates_of_another_type_or_another_file_are_refused_before_training(tmp_path):
    arrays = small_graphs.with_candidates(small_graphs.with_types())
    arrays.asked["links/target_candidates"][7, 3] = 59 * (arrays.asked["links/target"][7] < 59)
    graph = small_graphs.on_ranks(one_rank(), arrays, tmp_path / "parts.h5")
    with pytest.raises(HpcgnnError, match=r"holds node (0|59), but the targets of edges of type \d are"):
        FixedCandidates(graph, None)
    with pytest.raises(HpcgnnError, match="links/target_candidates holds node"), PartsFile(graph.path) as file:
        whole_check.verify(file)
    small_graphs.on_ranks(one_rank(), arrays, tmp_path / "parts.h5")
    with pytest.raises(HpcgnnError, match="is another file by now"):
        FixedCandidates(graph, None)


@pytest.mark.parametrize("target", ["4", "a", "0,", "-1"])
def test_types_that_the_graph_does_not_have_are_one_sentence(tmp_path, target):
    graph = small_graphs.on_ranks(one_rank(), relation_task.graph_of(), tmp_path / "parts.h5")
    with pytest.raises(HpcgnnError, match=r"has no type of edges '.*': it has types 0 to 3$"):
        hpcgnn.split_links(graph, hpcgnn.LinkConfig(target=target))


NAMED = [("a", "lives in", "b"), ("b", "knows, well", "c"), ("c", "lives in", "a"), ("a", "2", "c"), ("d", "7", "a")]


@pytest.fixture(scope="module")
def named(tmp_path_factory) -> Path:
    """``parts.h5`` of triples with names, as the commands make it."""
    folder = tmp_path_factory.mktemp("named")
    with (folder / "triples.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("head", "relation", "tail"), *NAMED])
    convert(f"edgelist:{folder}/triples.csv?names=yes", folder / "graph.h5", ConvertOptions(features="random:4"))
    partition(one_rank(), folder / "graph.h5", folder / "parts.h5", PartitionOptions(2, method="random"))
    return folder / "parts.h5"


def test_parts_keep_the_names_of_the_graph(named):
    for kind in ("nodes", "edge_types", "classes"):
        assert hpcgnn.names(named, kind) == hpcgnn.names(named.with_name("graph.h5"), kind)
    assert hpcgnn.names(named, numbers=[3, 0]) == ["d", "a"]
    assert hpcgnn.names(named, "edge_types") == ["2", "7", "knows, well", "lives in"]


@pytest.mark.parametrize(
    ("target", "wanted"),
    [("lives in", [3]), ('"knows, well",3', [2, 3]), ("2, lives in", [0, 3]), ("1,0", [0, 1]), ("7", [1])],
)
def test_target_takes_names_and_numbers(named, target, wanted):
    split = hpcgnn.split_links(hpcgnn.load(named, one_rank(), any_ranks=True), hpcgnn.LinkConfig(target=target))
    assert split.relations.nonzero()[0].tolist() == wanted


def test_a_name_that_the_graph_does_not_have_is_a_sentence_with_those_that_it_has(named):
    graph = hpcgnn.load(named, one_rank(), any_ranks=True)
    with pytest.raises(
        HpcgnnError, match=r"has no type of edges 'likes': it has types 0 to 3: 2, 7, knows, well, lives in$"
    ):
        hpcgnn.split_links(graph, hpcgnn.LinkConfig(target="lives in,likes"))


def test_relations_need_types_of_edges(tmp_path):
    graph = small_graphs.on_ranks(one_rank(), small_graphs.random_multigraph(), tmp_path / "parts.h5")
    with pytest.raises(HpcgnnError, match="has no types of edges: leave --target out"):
        hpcgnn.split_links(graph, hpcgnn.LinkConfig(target="0"))
    with pytest.raises(HpcgnnError, match="--decoder transe learns a vector for each type of edges"):
        hpcgnn.build_model(hpcgnn.ModelConfig("gcn", decoder="transe"), graph)
    with pytest.raises(HpcgnnError, match=r"^--decoder rotate needs an even --hidden, for complex rows, not 7$"):
        hpcgnn.build_model(hpcgnn.ModelConfig("gcn", decoder="rotate", hidden=7), graph)


@pytest.mark.parametrize("decoder", ["transe", "rotate"])
def test_small_distances_of_long_rows_keep_their_digits(decoder):
    torch.manual_seed(0)
    judge, rows = CLASSES[decoder](8, 1), 1000 * torch.randn(40, 8)
    near = rows + torch.rand(40, 8)
    with torch.no_grad():
        torch.testing.assert_close(judge.every_score(near, rows).diagonal(), judge(identity(40), near, rows))
