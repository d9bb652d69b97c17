"""The zoo (tools/pyg_zoo): no layer of the installed PyG is missing, and each model is equal on one and three ranks, or refused
with a sentence that names a layer or line and a reason. The page with the results is up to date.
"""

from __future__ import annotations

import inspect
import re

import pytest
import torch
import torch_geometric.nn as pyg
from ranks.zoo import graph, layers, page, passes, run, specimens
from requires import EVERYTHING
from torch_geometric.nn.models.basic_gnn import BasicGNN

MODELS = list(specimens.specimens())
AGAIN = "run `python tools/pyg_zoo`"
# Models that also run on ranks with MPI: with a plan, over the halo, with attributes of edges, with statistics, and refused.
OVER_MPI = (
    "GCNConv(8, 4, improved=True)",
    "GATConv(8, 4, heads=2, edge_dim=3)",
    "custom.Normed(BatchNorm(8))",
    "custom.OwnMessage()",
    "custom.VirtualNode()",
)


def named() -> set[str]:
    """The names in the expressions that make the models."""
    return {name for model in MODELS for name in re.findall(r"\w+", model.code)}


def test_no_layer_of_pyg_is_missing():
    convolutions = set(pyg.conv.__all__)
    assert convolutions - named() - layers.NOT_ON_A_PLAIN_GRAPH.keys() == set()
    assert layers.NOT_ON_A_PLAIN_GRAPH.keys() <= convolutions
    assert set(pyg.norm.__all__) - named() == {"MessageNorm"}  # custom.NormedMessage has it
    assert set(pyg.aggr.__all__) - named() == {"Aggregation"}  # the base class
    of_pyg = [value for name, value in vars(pyg.models).items() if inspect.isclass(value)]
    assert {kind.__name__ for kind in of_pyg if issubclass(kind, BasicGNN)} - named() == set()
    assert len({re.match(r"(?:custom\.)?\w+", model.code)[0] for model in MODELS}) > 150


def selected():
    """The first model of each layer of PyG, those of edges with features, and an eighth of the others; with HPCGNN_TESTS=all, all
    models."""
    firsts = {re.match(r"\w+", model.code)[0]: model for model in reversed(MODELS)}.values()
    return [
        model
        for number, model in enumerate(MODELS)
        if EVERYTHING or number % 8 == 0 or "edge_attr" in model.takes or model in firsts
    ]


@pytest.fixture(scope="module")
def rows():
    """Models with their outcomes on one and three ranks."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    graph.make_files()
    found = [(model, run.outcomes(model)) for model in selected()]
    torch.set_num_threads(threads)
    return found


@pytest.mark.slow
def test_each_model_is_equal_or_refused(rows):
    wrong = [f"{model}: {each.kind} {each.text}" for model, both in rows for each in both if not each.is_right]
    assert wrong == []
    assert len(rows) > 90


@pytest.mark.slow
def test_a_refusal_names_a_layer_or_line_and_a_reason(rows):
    for model, both in rows:
        for each in both:
            if each.kind == run.REFUSED:
                kinds = "|".join({type(module).__name__ for module in model.make().modules()})
                assert re.search(rf"\b({kinds})\b.* (cannot be|was given) \w+", each.text), f"{model}: {each.text}"
                assert len(each.text) > 80, f"{model}: {each.text}"


def test_the_page_has_all_models():
    text = page.PAGE.read_text()
    assert [page.name(model) for model in MODELS if page.name(model) not in text] == [], AGAIN


@pytest.mark.slow
def test_the_page_has_these_results(rows):
    items = [line for line in page.PAGE.read_text().splitlines() if line.startswith("- ")]
    for row in rows:
        model, both = row
        equal = [line for line in items if line.startswith(f"- {page.arguments(row)}: ") and page.name(model) in line]
        # not by the sentence of a refusal: that of a model with random numbers depends on them
        assert bool(equal) == (both[-1].kind == run.EQUAL), f"{model} is {both[-1].kind}: {AGAIN}"


@pytest.mark.slow
def test_models_over_mpi_have_the_same_results(mpi_ranks):
    for model in MODELS:
        if model.code in OVER_MPI:
            path = graph.parts_file(3, weighted="edge_weight" in model.takes)
            found = mpi_ranks(3).run(passes, model, path)
            if model.code == "custom.VirtualNode()":
                assert set(found) == {run.compare(model, 1).text}
            else:
                assert run.judge(run.on_one_machine(model), found).kind == run.EQUAL
