"""Programs for ranks: links of a graph with types of edges, compared with PyG and with loops over the whole graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyg_models
import small_graphs
import torch
import torch.nn.functional as F
from ranks.link_task import gathered
from torch.func import functional_call
from torch_geometric.nn.kge import ComplEx, DistMult, RotatE, TransE

import hpcgnn
from hpcgnn.cli.train_job import _result_rows
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.decoders import CLASSES
from hpcgnn.train.links import Links, links_of
from hpcgnn.train.predict import predict, score_pairs
from hpcgnn.train.ranking import FixedCandidates, Ranker
from hpcgnn.train.tasks import LinkTask
from hpcgnn.world import World

RELATIONS, EPOCH = 4, 2
DECODERS = ("dot", "distmult", "transe", "complex", "rotate")
CONFIG = {"model": "rgcn", "layers": 2, "hidden": 8, "dropout": 0.0, "norm": "layer"}
LINKS = {"link_split": (0.15, 0.2), "negatives": 3, "negative_pool": 25}
Triples = np.ndarray  # (m, 3) original id of the source, relation, original id of the target


def graph_of() -> small_graphs.Arrays:
    return small_graphs.with_typed_edges(small_graphs.random_multigraph(), types=RELATIONS)


def with_split(arrays: small_graphs.Arrays) -> small_graphs.Arrays:
    """The graph with a split of its links, in which parallel links may have different sets; self-loops are training links."""
    split = np.random.default_rng(11).choice(4, arrays.edge_index.shape[1], p=(0.6, 0.15, 0.15, 0.1)).astype(np.uint8)
    return replace(arrays, edge_split=np.where(arrays.edge_index[0] == arrays.edge_index[1], np.uint8(0), split))


def triples_of(arrays: small_graphs.Arrays) -> Triples:
    return np.stack((arrays.edge_index[0], arrays.edge_type, arrays.edge_index[1]), axis=1)


def all_triples(graph: LocalGraph, source: np.ndarray, relation: np.ndarray, target: np.ndarray) -> Triples:
    """Triples of all ranks, sorted, from positions in the file."""
    ids = gathered(graph.world, graph.in_loaded_order(graph.original_ids).numpy())
    found = gathered(graph.world, np.stack((ids[source], relation, ids[target]), axis=1))
    return np.array(sorted(map(tuple, found)))


def links_in(graph: LocalGraph, links: Links) -> Triples:
    return all_triples(graph, *links.triples)


def negatives_in(task: LinkTask, graph: LocalGraph, links: Links) -> tuple[Triples, Triples]:
    """Negatives with a drawn source, and with a drawn target."""
    drawn, world = task.sampler.draw(links, task.model.keys.seed, EPOCH), graph.world
    at = graph.in_loaded_order(torch.arange(graph.num_nodes)).argsort().numpy() + graph.first
    pool = np.zeros(drawn.of_targets.num_cols, np.int64)
    pool[drawn.slots] = at[drawn.owned]
    pool = world.allreduce(pool)
    rows = np.concatenate((at, graph.halo_positions))
    found = []
    for pairs, csr in ((links.targets, drawn.of_targets), (links.sources, drawn.of_sources)):
        pair, other = csr.entry_rows().numpy(), pool[csr.indices.numpy()]
        known, relation = rows[pairs.nodes()[pair]], pairs.relation.numpy()[pair]
        ends = (other, relation, known) if pairs.end == "target" else (known, relation, other)
        found.append(all_triples(graph, *ends))
    return found[0], found[1]


def scores_by_pyg(decoder: str, rows: torch.Tensor, vectors: torch.Tensor | None, triples: Triples) -> torch.Tensor:
    source, relation, target = torch.from_numpy(triples).T
    if decoder == "dot":
        return (rows[source] * rows[target]).sum(1)
    weights, width = {"node_emb.weight": rows, "rel_emb.weight": vectors}, rows.shape[1]
    if decoder in ("complex", "rotate"):
        width //= 2
        weights = {"node_emb.weight": rows[:, :width], "node_emb_im.weight": rows[:, width:], "rel_emb.weight": vectors}
    if decoder == "complex":
        weights |= {"rel_emb.weight": vectors[:, :width], "rel_emb_im.weight": vectors[:, width:]}
    kind = {"distmult": DistMult, "transe": TransE, "complex": ComplEx, "rotate": RotatE}[decoder]
    found = functional_call(kind(len(rows), RELATIONS, width).double(), weights, (source, relation, target))
    return found - 1 if decoder == "rotate" else found  # without PyG's margin


class Projected(torch.nn.Module):
    """Rows of a model without layers: a product of the features."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.input_layer = torch.nn.ParameterDict({name.partition(".")[2]: value for name, value in weights.items()})

    def forward(self, x: torch.Tensor, *_: object) -> torch.Tensor:
        return x @ self.input_layer["weight"] + self.input_layer["bias"]


def compare(graph: LocalGraph, arrays: small_graphs.Arrays, decoder: str, layers: int = 2, **links: object) -> dict:
    """The loss, gradients, metrics and draws, beside those of PyG on the edges that may carry messages."""
    world = graph.world
    shares = {"link_split": hpcgnn.LinkConfig.link_split} if graph.meta.has_link_split else {}
    split = hpcgnn.split_links(graph, hpcgnn.LinkConfig(**LINKS | shares | links))
    config = hpcgnn.ModelConfig(
        decoder=decoder, **CONFIG | ({"layers": layers} if layers else {"layers": 0, "model": "sage"})
    )
    model = hpcgnn.build_model(config, split.train, backend="reference", dtype=torch.float64, seed=1)
    task = LinkTask(model, split, "auto")
    model.begin_epoch(EPOCH)
    loss, count = task.loss(EPOCH)
    loss.backward()
    sums = {name: torch.from_numpy(world.allreduce(p.grad.numpy())) for name, p in model.named_parameters()}
    learned, held_out = links_in(split.train, task.learned), [
        links_in(part, each) for part, (each, _) in zip((split.validation, split.test), task.held_out, strict=True)]  # fmt: skip
    messages = links_in(split.train, links_of(split.train))
    drawn = negatives_in(task, split.train, task.learned)

    state = {name: value.clone() for name, value in model.state_dict().items()}
    encoder = {name: value for name, value in state.items() if not name.startswith("decoder.")}
    reference = (
        pyg_models.reference(config, arrays.x.shape[1], config.hidden, encoder) if layers else Projected(encoder)
    )
    triples = triples_of(arrays)
    train = torch.from_numpy(np.concatenate((messages, triples[triples[:, 0] == triples[:, 2]])))
    reference.edge_type = train[:, 1].long()
    rows = reference(torch.from_numpy(arrays.x).double(), train[:, [0, 2]].T, None)
    vectors = state.get("decoder.relation", torch.zeros(0)).requires_grad_()
    margin = state.get("decoder.margin", torch.zeros(1, dtype=torch.float64)).requires_grad_()
    apart = np.concatenate(drawn)
    joined, others = (scores_by_pyg(decoder, rows, vectors, each) + margin for each in (learned, apart))
    wanted = F.softplus(-joined).sum() + F.softplus(others).sum()
    wanted.backward()
    gradients = {name: p.grad for name, p in reference.named_parameters()}
    of_decoder = {"decoder.relation": vectors.grad, "decoder.margin": margin.grad}
    mine = {name: value for name, value in sums.items() if name in encoder}
    mine = pyg_models.to_pyg(config, mine) if layers else mine
    errors = [float((mine[name] - gradients[name]).abs().max()) for name in mine]
    errors += [float((sums[name] - of_decoder[name]).abs().max()) for name in sums if name not in encoder]

    model.eval()
    with torch.no_grad():
        metrics, ranking = task.evaluate(), task.rank_test_links()
        pools = [np.unique(gathered(world, graph.original_ids.numpy()[pool])) for pool in
                 (task.sampler.pool(int.from_bytes(b"judge", "big"), 0, side)[0] for side in range(2))]  # fmt: skip
    score = lambda each: scores_by_pyg(decoder, rows, vectors, each).detach().numpy()  # noqa: E731
    nodes = np.arange(arrays.num_nodes)
    return {
        "loss_error": abs(float(world.allreduce(np.array([loss.item()]))[0]) / wanted.item() - 1),
        "gradient_error": max(errors) / max(float(each.abs().max()) for each in gradients.values()),
        "count_error": int(world.allreduce(np.array([count]))[0]) - len(learned) - len(apart),
        "metric": task.metric,
        "exchanges": len(model.aggregators),
        "metrics": metrics,
        "wanted_metrics": [by_loops(score, triples, links, pool)["mrr"] for links, pool in zip(held_out, pools, strict=True)],
        "ranking": ranking,
        "wanted_ranking": by_loops(score, triples, held_out[1], nodes),
        "sides": [each.tolist() for each in (learned, *held_out)],
        "messages": messages.tolist(),
        "negatives": [each.tolist() for each in drawn],
    }  # fmt: skip


def by_loops(
    score, triples: Triples, links: Triples, candidates: np.ndarray, kinds: np.ndarray | None = None
) -> dict[str, float]:
    """The filtered metrics, one question and one candidate after another. kinds: (N,) types of nodes, of which the candidates and
    the true end have the same."""
    known, ranks = set(map(tuple, triples)), []
    for source, relation, target in links:
        for is_source in (True, False):
            true = source if is_source else target
            among = candidates if kinds is None else candidates[kinds[candidates] == kinds[true]]
            others = [(c, relation, target) if is_source else (source, relation, c) for c in among]
            others = [each for each in others if each not in known]
            scores = score(np.array([(source, relation, target), *others]))
            better, same = (scores[1:] > scores[0]).sum(), (scores[1:] == scores[0]).sum()
            ranks.append(((1 + better) + (1 + better + same)) / 2)
    ranks = np.array(ranks)
    return {"mrr": (1 / ranks).mean()} | {f"hits@{k}": (ranks <= k).mean() for k in (1, 3, 10)}


def with_ties(graph: LocalGraph, arrays: small_graphs.Arrays, decoder: str) -> dict:
    """Ranks of all links with embeddings of a few whole numbers, many of which are equal."""
    rng = np.random.default_rng(3)
    rows = torch.from_numpy(rng.integers(-1, 2, (arrays.num_nodes, 4)).astype(np.float64))
    mine, links = CLASSES[decoder](4, RELATIONS, backend="reference").double(), links_of(graph)
    vectors = torch.from_numpy(rng.integers(-1, 2, (RELATIONS, 4)).astype(np.float64))
    if decoder == "rotate":
        vectors = torch.zeros(RELATIONS, 2, dtype=torch.float64)  # of other angles, sine or cosine are not exact
    if decoder != "dot":
        mine.relation.data = vectors

    def score(each: Triples) -> np.ndarray:
        if decoder == "transe":  # PyG's formula without norms, which keeps numbers whole
            return -(rows[each[:, 0]] + vectors[each[:, 1]] - rows[each[:, 2]]).abs().sum(1).numpy()
        return scores_by_pyg(decoder, rows, vectors, each).numpy()

    owned, extended = rows[graph.original_ids], rows[torch.cat((graph.original_ids, graph.halo_ids))]
    with torch.no_grad():
        found = Ranker(graph, links).metrics(mine, owned, extended)
    triples = triples_of(arrays)
    wanted = by_loops(score, triples, triples[triples[:, 0] != triples[:, 2]], np.arange(arrays.num_nodes))
    return {"found": found, "wanted": wanted}


def of_kinds(graph: LocalGraph, arrays: small_graphs.Arrays) -> dict:
    """Negatives and ranks in a graph whose nodes have types, with two of its types of edges as links."""
    links = hpcgnn.LinkConfig(**LINKS | {"link_split": (0.2, 0.3), "target": "paper__by__author, about"})
    split = hpcgnn.split_links(graph, links)
    config = hpcgnn.ModelConfig(decoder="distmult", embed="venue,term", **CONFIG)
    model = hpcgnn.build_model(config, split.train, backend="reference", dtype=torch.float64, seed=1)
    task = LinkTask(model, split, "auto")
    model.eval()
    with torch.no_grad():
        metrics, ranking, mine = task.evaluate(), task.rank_test_links(), model(task.features)
    rows = torch.zeros(arrays.num_nodes, config.hidden, dtype=torch.float64)
    rows[graph.original_ids] = mine
    rows = torch.from_numpy(graph.world.allreduce(rows.numpy()))
    kinds, triples = graph.meta.node_types_of(np.arange(arrays.num_nodes)), triples_of(arrays)
    vectors, held_out = model.state_dict()["decoder.relation"], links_in(split.test, task.held_out[1][0])

    def score(each: Triples) -> np.ndarray:
        return (rows[each[:, 0]] * vectors[each[:, 1]] * rows[each[:, 2]]).sum(1).numpy()

    pools = [task.sampler.pool(int.from_bytes(b"judge", "big"), 0, side)[0] for side in range(2)]
    pools = [np.unique(gathered(graph.world, graph.original_ids.numpy()[each])) for each in pools]
    sides = [
        links_in(part, each) for part, (each, _) in zip((split.validation, split.test), task.held_out, strict=True)
    ]
    return {
        "metrics": metrics,
        "wanted_metrics": [by_loops(score, triples, each, pool, kinds)["mrr"]
                           for each, pool in zip(sides, pools, strict=True)],
        "ranking": ranking,
        "wanted_ranking": by_loops(score, triples, held_out, np.arange(arrays.num_nodes), kinds),
        "among_all_types": by_loops(score, triples, held_out, np.arange(arrays.num_nodes)),
        "sides": [links_in(split.train, task.learned).tolist(), *(each.tolist() for each in sides)],
        "negatives": [each.tolist() for each in negatives_in(task, split.train, task.learned)],
        "pool": [int((kinds[pools[0]] == kind).sum()) for kind in range(4)],
    }  # fmt: skip


def scored_pairs(graph: LocalGraph, decoder: str) -> dict:
    """Scores of triples by a checkpoint's content, beside PyG's of its embeddings; and how wrong pairs are refused."""
    config = hpcgnn.ModelConfig(decoder=decoder, **CONFIG)
    model = hpcgnn.build_model(config, graph, seed=1)
    content = {"model_config": model.description(), "model": model.state_dict()}
    pairs = np.random.default_rng(5).integers(0, (graph.meta.num_nodes, graph.meta.num_nodes, RELATIONS), (7, 3))
    found = score_pairs(graph, content, pairs).numpy()
    rows = torch.zeros(graph.meta.num_nodes, 8)
    rows[graph.original_ids] = predict(graph, content)
    rows = graph.world.allreduce(rows).double()
    wanted = scores_by_pyg(decoder, rows, content["model"]["decoder.relation"].double(), pairs[:, [0, 2, 1]])
    margin = content["model"].get("decoder.margin", torch.zeros(1))
    refused = []
    for wrong in (pairs[:, :2], pairs + np.array([0, 0, RELATIONS])):
        try:
            score_pairs(graph, content, wrong)
        except hpcgnn.HpcgnnError as error:
            refused.append(str(error))
    return {"found": found.tolist(), "wanted": (wanted + margin).tolist(), "refused": refused}


def report(world: World, folder: Path) -> dict:
    """The results, beside the expected ones."""
    arrays = graph_of()
    graph = small_graphs.on_ranks(world, arrays, folder / f"relations-{world.size}.h5")
    kinds = small_graphs.on_ranks(world, small_graphs.with_types(), folder / f"kinds-{world.size}.h5")
    given = with_split(arrays)
    of_given = small_graphs.on_ranks(world, given, folder / f"split-{world.size}.h5")
    return {
        "decoders": {name: compare(graph, arrays, name) for name in DECODERS},
        "of_target": compare(graph, arrays, "distmult", target="1,3"),
        "of_split": compare(of_given, given, "distmult"),
        "reordered": compare(graph.reordered("rcm"), arrays, "distmult"),
        "no_layers": compare(graph, arrays, "complex", layers=0),
        "ties": {name: with_ties(graph, arrays, name) for name in DECODERS},
        "pairs": {name: scored_pairs(graph, name) for name in DECODERS[1:]},
        "of_kinds": of_kinds(kinds, small_graphs.with_types()),
        "triples": triples_of(arrays).tolist(),
    }


def of_equal_rows(world: World, folder: Path, decoders: dict, rows: dict) -> dict:
    """The mean reciprocal rank of each decoder where all nodes have the same row, float32 of 100 columns."""
    graph = small_graphs.on_ranks(world, small_graphs.with_candidates(graph_of()), folder / f"equal-{world.size}.h5")
    candidates, nodes = FixedCandidates(graph, None), graph.num_nodes
    with torch.no_grad():
        return {name: candidates.metrics(2, each, rows[name].expand(nodes, -1).contiguous())["mrr"]
                for name, each in decoders.items()}  # fmt: skip


def ranks_by_ogb(scores: np.ndarray) -> np.ndarray:
    """(m,) ranks of the first column, the formula of ``ogb.linkproppred.Evaluator``."""
    true, negative = scores[:, :1], scores[:, 1:]
    return 0.5 * ((negative > true).sum(1) + (negative >= true).sum(1)) + 1


def wanted_of_candidates(asked: dict[str, np.ndarray], chosen: np.ndarray, score) -> dict[str, float]:
    """The metrics of some rows of the table, by OGB's formula. score(sources, relations, targets): of arrays of one shape."""
    source, target = (asked[f"links/{end}"][chosen][:, None] for end in ("source", "target"))
    relation, ranks = asked.get("links/type", np.zeros_like(asked["links/set"]))[chosen][:, None], []
    for end in ("source", "target"):
        if (others := asked.get(f"links/{end}_candidates")) is not None:
            others = np.concatenate((source if end == "source" else target, others[chosen]), axis=1)
            ends = (others, relation, target) if end == "source" else (source, relation, others)
            ranks.append(ranks_by_ogb(score(*np.broadcast_arrays(*ends))))
    ranks = np.concatenate(ranks)
    return {"mrr": (1 / ranks).mean()} | {f"hits@{k}": (ranks <= k).mean() for k in (1, 3, 10)}


def fixed_candidates(world: World, folder: Path, form: str) -> dict:
    """Ranks among the graph's own candidates, of rows with ties and of a model, beside those of OGB's formula."""
    arrays, decoder, ends = {
        "citation": (small_graphs.random_multigraph(), "dot", ("target",)),
        "wikikg": (graph_of(), "complex", ("source", "target")),
        "biokg": (small_graphs.with_types(), "distmult", ("source", "target")),
    }[form]
    arrays = small_graphs.with_candidates(arrays, ends=ends)
    graph, asked = small_graphs.on_ranks(world, arrays, folder / f"{form}-{world.size}.h5"), arrays.asked
    model_of = {"model": "gcn"} if form == "citation" else {"embed": "venue,term"} if form == "biokg" else {}
    links = hpcgnn.LinkConfig(negative_pool=25, rank_all="always", target="" if form == "citation" else "1,2")
    graph = graph.reordered("rcm") if form == "wikikg" else graph
    split = hpcgnn.split_links(graph, links)
    config = hpcgnn.ModelConfig(decoder=decoder, **CONFIG | model_of)
    model = hpcgnn.build_model(config, split.train, backend="reference", dtype=torch.float64, seed=1)
    task = LinkTask(model.eval(), split, "auto")
    every, mine = np.random.default_rng(3).integers(-1, 2, (arrays.num_nodes, 8)).astype(float), task.candidates
    assert mine is not None
    vectors = task.model.state_dict().get("decoder.relation", torch.zeros(0, 8)).numpy().copy()

    def score(rows: np.ndarray):
        def of(source: np.ndarray, relation: np.ndarray, target: np.ndarray) -> np.ndarray:
            each = np.stack([part.ravel() for part in (source, relation, target)], axis=1)
            found = scores_by_pyg(decoder, torch.from_numpy(rows), torch.from_numpy(vectors), each)
            return found.numpy().reshape(source.shape)

        return of

    is_asked = np.isin(asked["links/type"], (1, 2)) if "links/type" in asked else np.full(len(asked["links/set"]), True)
    chosen = [np.flatnonzero(is_asked & (asked["links/set"] == number)) for number in (1, 2)]
    with torch.no_grad():
        rows = np.zeros((arrays.num_nodes, 8))
        rows[graph.original_ids] = task._embeddings().numpy()
        rows = world.allreduce(rows)
        found = {"metric": task.metric, "evaluated": task.evaluate(), "at_end": task.rank_test_links()}
        found["wanted"] = [wanted_of_candidates(asked, each, score(rows)) for each in chosen]
        vectors = np.random.default_rng(4).integers(-1, 2, vectors.shape).astype(float)
        if vectors.size:
            task.decoder.relation.data = torch.from_numpy(vectors)
        owned = torch.from_numpy(every[graph.original_ids.numpy()])
        found["ties"] = [mine.metrics(number, task.decoder, owned) for number in (1, 2, 3)]
        found["wanted_ties"] = [wanted_of_candidates(asked, each, score(every)) for each in chosen]
    summary = hpcgnn.Trainer(model.train(), split, hpcgnn.TrainConfig(epochs=1)).fit()
    return found | {"told": [summary["test_ranking"]["candidates"], *_result_rows(summary)]}
