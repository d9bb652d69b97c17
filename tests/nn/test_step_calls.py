"""An aggregation decides nothing again that was decided in an earlier epoch: its Python calls are counted. What a model is given
later is checked nonetheless.
"""

from __future__ import annotations

import pytest
import small_graphs
import torch
from ranks import step_calls

import hpcgnn
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads

MOST_CALLS, MOST_FILES = 80, 15  # between the features of a layer and the wire, and back


@pytest.mark.mpi
@pytest.mark.parametrize("bits", [2, 32])
def test_an_aggregation_makes_few_calls(mpi_ranks, tmp_path, bits):
    path = small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.even_graph(nodes=400, edges=2000), 2)
    for calls in mpi_ranks(2).run(step_calls.of_layer_2, path, bits)[0]:
        files = {file for file, _ in calls if not file.startswith("<")}
        words = "\n".join(f"{file}: {name}" for file, name in calls)
        assert 20 < len(calls) <= MOST_CALLS, words
        assert len(files) <= MOST_FILES, words


@pytest.mark.parametrize("model", ["gcn", "gin", "sage"])
@pytest.mark.parametrize("bits", [2, 32])
def test_other_features_than_in_earlier_epochs_are_refused(tmp_path, model, bits):
    arrays = small_graphs.even_graph(nodes=300, edges=2000)
    changes = (
        torch.Tensor.bfloat16,
        lambda x: x.to("meta"),
        lambda x: x[1:],
        lambda x: x[:, :, None],
        lambda x: x.double(),
    )

    def program(world: World) -> None:
        graph = small_graphs.on_ranks(world, arrays, tmp_path / "parts.h5")
        for change in changes:
            messages = Messages(world, MessageConfig(bits=bits))
            built = hpcgnn.build_model(hpcgnn.ModelConfig(model, layers=2, hidden=16), graph, messages=messages)
            built(graph.x)
            with pytest.raises((ValueError, RuntimeError)):
                built(change(graph.x))

    on_threads(2, program)
