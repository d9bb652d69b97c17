"""One property of all models in all ways of running: they equal their formula in plain torch, within the bound of their
arithmetic, and show what each setting is for; or the settings are refused in a sentence.

A *cell* (tests/matrix.py) has a model, a graph and settings. A refused cell is changed towards the defaults until it is accepted.
``tests/oracle.py`` has the formulas, which PyG's layers confirm.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pyg_models
import pytest
import scipy.sparse as sp
import small_graphs
import torch
import torch.nn.functional as F
from matrix import Cell, cells, seed
from rank_pool import ThreadPool
from ranks import equivalence, ways
from requires import EVERYTHING
from torch.overrides import TorchFunctionMode

import hpcgnn
from hpcgnn.graph import ORDERS, features_on_disk
from hpcgnn.nn import activations, aggregator, attention_step, edge_blocks, linear_map
from hpcgnn.nn.config import MODELS
from hpcgnn.world.thread_world import one_rank

# The first value of each axis is the default.
AXES = {
    "model": tuple(MODELS),
    "graph": ("edges", "plain", "weighted", "nodes", "within"),
    "ranks": (3, 1, 2, 4),
    "strategy": ("hybrid", "pre", "post"),
    "bits": (32, 16, 8, 2),
    "over": ("whole", "pieces", "partial"),
    "edge_types": ("ignore", "sum", "mean", "max"),
    "activations": ("keep", "recompute", "8bit"),
    "compute": ("float64", "float32", "bf16-emulated", "int8-always"),
    "features": ("memory", "sparse", "disk"),
    "node_aware": ("off", "on"),
    "rows": ("fresh", "stale", "delta"),
    "cached": (False, True),
}
# With the values that :func:`settled` adds.
DEFAULTS = {name: values[0] for name, values in AXES.items()} | {"rate": 0.0, "layers": 3, "edges": "all"}
PROPAGATING = ("appnp", "dagnn", "sgc")  # whose messages are as wide as the number of classes
RANKS_PER_NODE = 2
# Passes after which late rows, or differences of rounded ones, have reached all of three layers and hops, there and back.
EPOCHS = {"fresh": 1, "stale": 10, "delta": 16}


def settled(cell: Cell) -> Cell:
    """The cell with the rate of its dropouts, its layers, and its edges, which stay when others of its values change. Where no
    message has to show a setting, these may be those ``between`` parts or ``inside`` of them, or lack those of a type."""
    is_exact = cell.rows == "fresh" and cell.bits == 32 and cell.activations != "8bit" and cell.compute != "int8-always"
    shows = not is_exact or cell.over != "whole" or cell.node_aware == "on" or cell.cached or cell.ranks == 1
    if cell.activations == "8bit" and cell.compute == "float64":
        cell = cell.changed(compute="float32")  # float64 has no 8 bits
    if cell.node_aware == "on" and cell.ranks == 3:
        cell = cell.changed(ranks=4)  # the only rank of the second node would have no nodes
    rate = cell.draws.choice([0.0, 0.3]) if is_exact else 0.0
    layers = 2 + cell.number % 2 if cell.number % 7 else 1
    typed = {"edges": ["but-first"], "within": ["but-first"], "nodes": ["but-first", "but-last"]}.get(cell.graph, [])
    edges = "all" if shows else cell.draws.choice(["all", "between", "inside", *typed])
    return cell.changed(rate=rate, layers=layers, edges=edges)


CELLS = [settled(cell) for cell in cells(AXES, 120)]


@pytest.fixture(autouse=True)
def small_work(monkeypatch):
    """Sizes from which the package works otherwise are those of small graphs; some ranks share a node."""
    monkeypatch.setenv("HPCGNN_RANKS_PER_NODE", str(RANKS_PER_NODE))
    monkeypatch.setattr(features_on_disk, "_BLOCK_BYTES", 7 * 9 * 4)
    monkeypatch.setattr(aggregator, "_BLOCK_BYTES", 7 * 16 * 8)
    monkeypatch.setattr(activations, "_LEAST_VALUES", 1)
    monkeypatch.setattr(edge_blocks, "_VALUES", 40 * 16)  # some end inside of the edges of a node
    for module in (linear_map, attention_step):
        monkeypatch.setattr(module, "gathers_bf16", lambda csr, width: True)
    for name, least in (("_LEAST_VALUES", 1), ("_LEAST_COLUMNS", 1), ("_ROWS_AT_ONCE", 7)):
        monkeypatch.setattr(attention_step, name, least)


# -- cells --------------------------------------------------------------------------------------------------------------


@functools.cache
def graph_of(name: str) -> small_graphs.Arrays:
    """The graph of an axis's value: with types and features of edges, with neither, with weights, with types of nodes, or with
    such types between which there are no edges."""
    if name == "edges":
        return small_graphs.with_typed_edges(small_graphs.random_multigraph())
    if name in ("plain", "weighted"):
        return small_graphs.random_multigraph(weighted=name == "weighted")
    graph = small_graphs.with_types()
    return graph if name == "nodes" else small_graphs.within_types(graph)


@functools.cache
def stored(folder: Path, name: str, ranks: int, is_sparse: bool, edges: str) -> tuple[small_graphs.Arrays, Path]:
    """A graph, and its file in random parts, of which the last of three or more has no node. edges: ``all``, those ``between``
    parts, those ``inside`` of them, or those of all types but one, ``but-first`` or ``but-last``. Without the last, no edge ends
    at the nodes of a type."""
    graph = graph_of(name)
    part = small_graphs.with_an_empty_part(graph, ranks)
    if edges == "but-first":
        graph = small_graphs.dropped(graph)
    elif edges == "but-last":
        others = small_graphs.with_edges(graph, graph.edge_type < graph.edge_type.max())
        graph = replace(
            others, edge_types=graph.edge_types[:-1]
        )  # names, if any: a refused cell gets the default graph
    elif edges != "all":
        is_between = part[graph.edge_index[0]] != part[graph.edge_index[1]]
        graph = small_graphs.with_edges(graph, is_between == (edges == "between"))
    if is_sparse:
        x = graph.x if sp.issparse(graph.x) else sp.csr_matrix(np.where(graph.x > 0.5, graph.x, 0))
        graph = replace(graph, x=x, x_by_type=False)
    path = folder / f"{name}-{ranks}-{is_sparse}-{edges}.h5"
    small_graphs.write_parts(path, graph, part, ranks)
    return graph, path


def config_of(cell: Cell) -> hpcgnn.ModelConfig:
    """The settings of a cell's model; those that are no axis follow from the cell's draws."""
    draws, is_typed, rate = cell.draws, cell.graph in ("nodes", "within"), cell.rate
    settings = {
        "model": cell.model,
        "layers": cell.layers,
        "hidden": draws.choice([16, 32]),
        "heads": draws.choice([1, 2, 4]),
        "output_heads": draws.choice([1, 2]),
        "hops": draws.choice([1, 3]),
        "norm": draws.choice(["auto", "mean", "batch", "layer", "none"]),
        "activation": draws.choice(["relu", "relu", "elu"]),
        "attention_mechanism": draws.choice(["across-relation", "within-relation"]),
        "dropout": rate,
        "attention_dropout": draws.choice([0.0, rate]),
        # A matrix by type of nodes counts its columns by itself, so its masks are others.
        "input_dropout": 0.0 if cell.cached or (is_typed and cell.features != "sparse") else draws.choice([0.0, rate]),
        "embed": draws.choice(["", "venue,term", "all"]) if is_typed else draws.choice(["", "", "", "all"]),
        **draws.choice([{}, {"bases": 2}, {"blocks": 2}]),
        "edge_types": cell.edge_types,
        "halo": "pieces" if cell.over == "pieces" else "whole",
        "attention": "partial" if cell.over == "partial" else "halo",
    }
    if cell.model == "rgat" or cell.cached or cell.features != "memory":
        settings |= {"blocks": 0, "embed": ""}
    return hpcgnn.ModelConfig.of_used(settings)


def way_of(cell: Cell) -> ways.Way:
    """The way in which a cell's model runs."""
    is_double = cell.compute == "float64"
    return ways.Way(
        strategy=cell.strategy,
        bits=cell.bits,
        rows=cell.rows,
        node_aware=cell.node_aware,
        features="disk" if cell.features == "disk" else "memory",
        node_order="none" if cell.features == "disk" else cell.draws.choice(["none", *ORDERS]),
        dtype="float64" if is_double else "float32",
        compute="float32" if is_double else cell.compute,
        activations=cell.activations,
        cached=cell.cached,
        epochs=2 if cell.cached and cell.rows == "fresh" else EPOCHS[cell.rows],
    )


@dataclass
class Ran:
    """The results of a cell. found: of rank 0. wanted: scores and gradients by the formula. closest: the smallest distance of an
    argument of a ReLU from its kink, relative to the largest."""

    cell: Cell
    found: ways.Found
    wanted: ways.Found
    closest: float
    digests: tuple[str, ...]


def run(folder: Path, cell: Cell, pool: Any = None) -> Ran | str:
    """The results of a cell, or the sentence in which all ranks refuse it."""
    config = config_of(cell)
    asked = {
        "halo": cell.over == "pieces",
        "attention": cell.over == "partial",
        "edge_types": cell.edge_types != "ignore",
    }
    for setting, is_asked in asked.items():
        if is_asked and setting not in config.flat():
            return f"{setting} is not used by {cell.model}"
    graph, path = stored(folder, cell.graph, cell.ranks, cell.features == "sparse", cell.edges)
    return compared(cell, graph, path, config, pool)


def compared(
    cell: Cell, graph: small_graphs.Arrays, path: Path, config: hpcgnn.ModelConfig, pool: Any = None
) -> Ran | str:
    """The results of a model on the ranks of a file, and by the formula on the graph; or the sentence that refuses it."""
    cotangent = np.random.default_rng(0).standard_normal((graph.num_nodes, graph.num_classes))
    found = (pool or ThreadPool(cell.ranks)).run(ways.in_one_way, path, config, way_of(cell), cotangent)
    sentences = {each.refused for each in found}
    assert len(sentences) == 1, f"ranks disagree: {sentences}"
    if found[0].refused:
        return found[0].refused
    wanted, closest = by_formula(graph, config, found[0].parameters, cotangent, way_of(cell).epochs - 1)
    return Ran(cell, found[0], wanted, closest, tuple(each.digest for each in found))


def ran_on(
    folder: Path, values: dict[str, Any], graph: small_graphs.Arrays, config: hpcgnn.ModelConfig, others: Any = None
) -> Ran:
    """The results of a model on any graph. values: of all axes. others: the graph that ranks have in its place."""
    ranks = values["ranks"]
    part = small_graphs.with_an_empty_part(graph, ranks)
    small_graphs.write_parts(folder / "parts.h5", graph if others is None else others, part, ranks)
    ran = compared(Cell(0, 0, values), graph, folder / "parts.h5", config)
    assert not isinstance(ran, str), ran
    return ran


class Kinks(TorchFunctionMode):
    """Notes the smallest argument of a ReLU that is not 0, relative to the largest."""

    closest = 1.0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (F.relu, F.leaky_relu):
            sizes = args[0].detach().abs()
            sizes = sizes[sizes > 0]
            if sizes.numel():
                self.closest = min(self.closest, float(sizes.min() / sizes.max()))
        return func(*args, **(kwargs or {}))


def by_formula(
    graph: small_graphs.Arrays,
    config: hpcgnn.ModelConfig,
    values: dict[str, np.ndarray],
    cotangent: np.ndarray,
    epoch: int,
) -> tuple[ways.Found, float]:
    """The scores and gradients by the formula."""
    parameters = {name: torch.from_numpy(value).requires_grad_() for name, value in values.items()}
    dense = graph.x.toarray() if sp.issparse(graph.x) else graph.x
    x = torch.from_numpy(dense).double().requires_grad_()
    with Kinks() as kinks:
        scores = oracle.scores(config, graph, parameters, x, ways.SEED, epoch)
    given = {**parameters, "x": x}
    found = torch.autograd.grad((scores * torch.from_numpy(cotangent)).sum(), [*given.values()], allow_unused=True)
    gradients = {
        name: np.zeros(one.shape) if each is None else each.numpy()
        for (name, one), each in zip(given.items(), found, strict=True)
    }
    return ways.Found(scores.detach().numpy(), gradients, values, {}), kinks.closest


# -- the property ---------------------------------------------------------------------------------------------------------


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    """The size of the difference, relative to that of the wanted values."""
    return float(np.linalg.norm(found - wanted) / max(np.linalg.norm(wanted), 1e-12))


def bounds(ran: Ran) -> tuple[float, float]:
    """The largest distances of scores and of gradients that a cell's arithmetic explains."""
    cell = ran.cell
    if cell.rows == "stale" and cell.compute == "float64" and cell.bits == 32:
        return 1e-6, 1e-6
    of_compute = {
        "float64": (1e-9, 1e-7),
        "float32": (1e-4, 1e-3),
        "bf16-emulated": (0.05, 0.4),
        "int8-always": (0.2, 0.5),
    }
    of_bits = {32: (0.0, 0.0), 16: (4e-3, 0.1), 8: (0.1, 0.4), 2: (2.0, 10.0)}
    if cell.rows == "delta":  # whose errors are fed back
        of_bits |= {16: (1e-4, 0.05), 8: (1e-2, 0.2), 2: (0.5, 2.0)}
    of_sums = 1.5 if cell.model in ("gin", "gine") and cell.bits < 32 else 0.0  # which no degree divides
    of_kept = 0.2 if cell.activations == "8bit" else 0.0
    of_kinks = 0.2 if ran.closest < 1e-5 and cell.compute != "float64" else 0.0
    (scores, gradients), (more, most) = of_compute[cell.compute], of_bits[cell.bits if cell.ranks > 1 else 32]
    return scores + more, gradients + most + of_sums + of_kept + of_kinks


def wrong(ran: Ran) -> list[str]:
    """The sentences about all that is not as the formula says."""
    of_scores, of_gradients = bounds(ran)
    found, wanted = ran.found, ran.wanted
    told = [] if (off := distance(found.scores, wanted.scores)) <= of_scores else [f"scores are off by {off:.2g}"]
    names = [*found.gradients]
    if of_gradients > 0.01:  # rounding may move a small gradient by more than its size, but not all of them together
        every = [np.concatenate([each.gradients[name].ravel() for name in names]) for each in (found, wanted)]
        off = distance(*every)
        return told if off <= of_gradients else [*told, f"gradients are off by {off:.2g}, above {of_gradients:.2g}"]
    largest = max(np.linalg.norm(each) for each in wanted.gradients.values())
    for name in names:
        size = max(np.linalg.norm(wanted.gradients[name]), 0.05 * largest)
        off = float(np.linalg.norm(found.gradients[name] - wanted.gradients[name]) / size)
        if not off <= of_gradients:
            told.append(f"the gradient of {name} is off by {off:.2g}, above {of_gradients:.2g}")
    return told


def idle(folder: Path, ran: Ran) -> list[str]:
    """The settings of a cell that do not show, beside the same cell with their defaults."""
    return [
        f"{axis}={ran.cell.values[axis]} does nothing" for axis in shown_by(ran.cell) if not shows(folder, ran, axis)
    ]


def shown_by(cell: Cell) -> list[str]:
    """The axes whose values have to show in a cell."""
    keeps_all = cell.cached and (cell.model == "sgc" or cell.layers == 1)  # so nothing travels after the first pass
    has_idle_node = cell.ranks == 3 and cell.node_aware == "on"  # its only rank has no nodes of the graph
    sends = cell.ranks > 1 and not (keeps_all or has_idle_node)
    applies = {
        "strategy": sends and uses_strategy(cell),
        "bits": sends,
        "over": sends,
        "activations": True,
        "compute": cell.compute != "float32",
        "features": True,
        "node_aware": sends and cell.ranks > RANKS_PER_NODE,
        "rows": sends,
        "cached": cell.ranks > 1 and cell.model != "sgc" and not has_idle_node and cell.rows == "fresh",
    }
    return [axis for axis in cell.changes(AXES) if applies.get(axis, False)]


def uses_strategy(cell: Cell) -> bool:
    """Return whether a cell's model sends sums of rows."""
    return bool(MODELS[cell.model].uses_strategy(config_of(cell)))


def shows(folder: Path, ran: Ran, axis: str) -> bool:
    """Return whether a setting has the effect that it is for."""
    facts, value = ran.found.facts, ran.cell.values[axis]
    is_sparse = ran.cell.features == "sparse"  # a product with sparse features is one of floats
    of_itself = {
        ("strategy", "pre"): facts["post"] == 0,
        ("strategy", "post"): facts["pre"] == 0,
        ("compute", "int8-always"): facts["quantized"] > 0 or (is_sparse and ran.cell.model in PROPAGATING),
        ("features", "sparse"): facts["sparse"] > 0,
        ("features", "disk"): facts["blocks"] > 0,
        ("node_aware", "on"): facts["shares"] > 0,
        ("rows", "stale"): facts["aged"] > 0,
        ("rows", "delta"): facts["differences"] > 0,
    }
    if (axis, value) in of_itself:
        return of_itself[axis, value]
    plain = run(folder, ran.cell.changed(**{axis: "float32" if axis == "compute" else AXES[axis][0]}))
    if isinstance(plain, str):
        return True  # the default is not there beside the other settings, which show it
    before = plain.found.facts
    if axis == "activations" and value == "recompute":
        assert ran.digests == plain.digests, "the results are other bits"
    is_less = facts["bytes"] < before["bytes"]
    return {
        "bits": is_less
        or before["bytes"] < 2000
        or ran.cell.model in PROPAGATING,  # few narrow rows fill a block of bytes
        "over": facts["rows_at_once"] < before["rows_at_once"]
        if value == "pieces"
        else facts["bytes"] != before["bytes"],
        "activations": saves(ran, facts["kept_bytes"] - before["kept_bytes"]),
        "compute": ran.digests != plain.digests or (is_sparse and ran.cell.layers == 1),
        "cached": is_less,
    }[axis]


def saves(ran: Ran, more_bytes: float) -> bool:
    """Return whether a way of keeping activations keeps fewer bytes. Where arithmetic is not that of floats of 32 or 64 bits,
    rows are kept in few bits already. The sums that ``recompute`` makes again in some models are as small as buffers of messages,
    which may be counted or not; :func:`test_recompute_saves_memory_or_is_refused` has cells in which they are larger."""
    cell = ran.cell
    is_small = cell.activations == "recompute" and cell.model in ("gcn", "sage", "jknet")
    return is_small or cell.compute not in ("float32", "float64") or more_bytes < 0


def accepted(folder: Path, cell: Cell) -> Ran:
    """The results of a cell, or of the nearest one that is not refused: settings become defaults, in a random order."""
    names = cell.changes(AXES)[1:] if "model" in cell.changes(AXES) else cell.changes(AXES)
    cell.draws.shuffle(names)
    ran = run(folder, cell)
    for name in names:
        if not isinstance(ran, str):
            break
        assert_is_a_sentence(ran)
        cell = cell.changed(**{name: AXES[name][0]})
        ran = run(folder, cell)
    assert not isinstance(ran, str), f"{cell.model} is refused with the defaults: {ran}"
    return ran


def assert_is_a_sentence(refused: str) -> None:
    assert len(refused) > 20, refused
    assert "\n" not in refused, refused


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("matrix")


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"cell{cell.number}-{cell.model}")
def test_a_model_in_any_way_equals_its_formula(folder, cell):
    ran = accepted(folder, cell)
    # With more settings, one of them may take away from another one what it would show.
    is_simple = len({*ran.cell.changes(AXES)} - {"model", "graph"}) <= 2
    found = wrong(ran) + (idle(folder, ran) if is_simple else [])
    assert not found, (ran.cell.described(AXES), config_of(ran.cell), found)


@pytest.mark.parametrize("axis", [axis for axis in AXES if axis not in ("model", "graph")])
def test_each_value_of_an_axis_does_what_it_is_for(folder, axis):
    """Beside the defaults; some model accepts it."""
    for value in AXES[axis][1:]:
        graph = "within" if axis == "edge_types" else "plain" if axis == "features" else "edges"
        others = {"activations": {"compute": "float32"}, "rows": {"bits": 8}, "node_aware": {"ranks": 4}}.get(axis, {})
        changed = Cell(0, 1, DEFAULTS | {"graph": graph, axis: value} | others)
        rans = [run(folder, changed.changed(model=model)) for model in (MODELS if EVERYTHING else ("gin", "gat"))]
        found = [ran for ran in rans if not isinstance(ran, str)]
        assert found, (axis, value, rans)
        for ran in found:
            assert not wrong(ran) + idle(folder, ran), (axis, value, ran.cell.model, wrong(ran), idle(folder, ran))


@pytest.mark.parametrize("model", MODELS)
def test_recompute_saves_memory_or_is_refused(folder, model):
    """With dropout, or with few bits where sums of these are all that could be made again."""
    bits = 8 if model in ("gcn", "sage") else 32
    cell = Cell(
        3, 1, DEFAULTS | {"model": model, "activations": "recompute", "rate": 0.0 if bits == 8 else 0.3, "bits": bits}
    )
    ran = run(folder, cell)
    if model in PROPAGATING:
        assert f"--activations recompute would save nothing, because {model} keeps" in str(ran)
        return
    plain = run(folder, cell.changed(activations="keep"))
    assert not isinstance(ran, str), ran
    assert not isinstance(plain, str), plain
    assert not wrong(ran)
    assert ran.digests == plain.digests
    assert ran.found.facts["kept_bytes"] < plain.found.facts["kept_bytes"]


BREAKABLE = {
    "gcn": {}, "sage": {"strategy": "pre"}, "gat": {"over": "partial"}, "gatv2": {"over": "pieces"}, "rgcn": {"strategy": "post"},
    "gin": {"activations": "recompute"}, "hgt": {"rows": "stale"}, "appnp": {"compute": "float32"},
}  # fmt: skip


@pytest.mark.parametrize(("number", "model"), [*enumerate(BREAKABLE)])
def test_a_broken_exchange_is_no_model(folder, number, model):
    """The property can fail, in each of several ways of running."""
    cell = Cell(0, 1, DEFAULTS | {"ranks": 4, "model": model, **BREAKABLE[model]})
    ran = run(folder, cell)
    assert not isinstance(ran, str)
    assert not wrong(ran)
    faults = [*equivalence.BROKEN]
    for fault in faults if EVERYTHING else [faults[(number + seed()) % len(faults)]]:
        with equivalence.sabotage(fault):
            broken = run(folder, cell)
        assert wrong(broken), f"{fault} is not noticed"


@pytest.mark.mpi
def test_ranks_of_mpi_give_what_threads_do(folder, mpi_ranks):
    for number, model in enumerate(MODELS):
        if number % (1 if EVERYTHING else 4) == 0:
            values = DEFAULTS | {"model": model}
            ran = run(folder, Cell(number, 1, values), mpi_ranks(3))
            assert not isinstance(ran, str)
            assert not wrong(ran)


def formulas() -> dict[str, tuple[str, hpcgnn.ModelConfig]]:
    """A graph's name and settings for each model and each form of its weights."""
    small = {"layers": 3, "hidden": 12, "heads": 4, "output_heads": 2, "dropout": 0.0, "norm": "layer", "hops": 3}
    forms: list[tuple[str, dict[str, Any]]] = [(model, {}) for model in MODELS]
    forms += [(model, {"edge_types": how}) for model in ("sage", "gcn", "gat") for how in ("sum", "mean", "max")]
    forms += [("rgcn", {"bases": 2}), ("rgcn", {"blocks": 3}), ("rgat", {"bases": 2})]
    forms += [
        ("rgat", {"attention_mechanism": "within-relation"}),
        ("gcnii", {"norm": "batch"}),
        ("gin", {"norm": "mean"}),
    ]
    forms += [(model, {"activation": "elu", "norm": "none"}) for model in ("sage", "gat", "hgt", "gine")]
    graphs = ("edges", "weighted", "within")
    return {
        f"{model} {' '.join(map(str, others.values()))} on {graph}": (
            graph,
            hpcgnn.ModelConfig.of_used(small | {"model": model} | others),
        )
        for model, others in forms
        for graph in graphs
        if not (graph == "weighted" and (model in ("rgcn", "rgat", "hgt", "gine") or "edge_types" in others))
        if not (graph == "within" and model == "gine")
    }


FORMULAS = formulas()


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_are_those_of_pyg(folder, name):
    """Scores and gradients; where nodes have types, x are rows that an input layer would make."""
    graph_name, config = FORMULAS[name]
    graph, path = stored(folder, graph_name, 1, False, "all")
    model = ways.built(hpcgnn.load(path, one_rank()), config, ways.Way(dtype="float64"))
    state = {key: each.detach() for key, each in model.state_dict().items() if not key.startswith("input_layer")}
    width = config.hidden if graph.node_types else graph.x.shape[1]
    x = torch.randn(graph.num_nodes, width, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    weight = None if graph.weight is None else torch.from_numpy(graph.weight).double()
    theirs = pyg_models.reference(config, width, graph.num_classes, state, graph=graph)
    wanted = theirs(x, torch.from_numpy(graph.edge_index), weight)
    cotangent = torch.from_numpy(np.random.default_rng(0).standard_normal(wanted.shape))
    (wanted * cotangent).sum().backward()
    ours = {key: each.clone().requires_grad_() for key, each in state.items() if "running" not in key}
    found = oracle.scores(config, graph, ours, x, 0, 0)
    assert distance(found.detach().numpy(), wanted.detach().numpy()) < 1e-10
    gradients = torch.autograd.grad((found * cotangent).sum(), [*ours.values()], allow_unused=True)
    given = {
        key: torch.zeros_like(ours[key]) if each is None else each for key, each in zip(ours, gradients, strict=True)
    }
    by_name = pyg_models.to_pyg(config, given, getattr(theirs, "keys", None))
    for key, parameter in theirs.named_parameters():
        assert float((by_name[key] - parameter.grad).abs().max()) < 1e-9 * (1 + float(parameter.grad.abs().max())), key
