"""Programs for ranks: trainings in 8-bit integers beside the same ones in float32, and messages that carry integers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ranks import models, staleness

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.process import StopRequest
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import int8_autograd
from hpcgnn.nn import GraphModel, make_aggregator
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.nn.config import KNOWN, ROW
from hpcgnn.nn.halo import attention_edges, make_halo
from hpcgnn.nn.int8 import Int8, Int8Config, make_int8
from hpcgnn.policy.clock import Clock
from hpcgnn.policy.config import PolicyConfig
from hpcgnn.world import World

ALWAYS, FLOAT32 = "int8-always", "float32"
WIDTH = 24  # columns of rows that travel
LR = 0.002  # small, so that errors are not magnified by training
COSTS = {"seconds_per_byte": {"node": 1e-9}, "seconds_per_message": {"node": 1e-5}}
CONFIGS = {name: models.small(name, hidden=32, heads=8) for name in KNOWN} | {
    "gat, partial": models.small("gat", hidden=32, heads=8, attention="partial"),
    "hgt": models.small("hgt", hidden=32, heads=8, layers=2),  # an input layer comes before, and each has two products
}
# The last layer of these models is the only one; those that end otherwise have another one before it.
HAVE_OTHERS = ("gcnii", "hgt", "jknet")
LAST_LAYERS = {name: models.small(name, layers=1, hops=1) for name in KNOWN} | {
    "gat, partial": models.small("gat", layers=1, attention="partial")
}


@dataclass(frozen=True)
class How:
    """The settings of a training. noise: the seed of the rounding noise."""

    model: str = "gcn"
    compute: str = ALWAYS
    messages: MessageConfig = field(default_factory=MessageConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    int8: Int8Config = field(default_factory=Int8Config)
    steps: int = 3
    lr: float = LR
    threads: int = 1
    noise: int = 1


@dataclass(frozen=True)
class Trained:
    """The losses of each epoch, the gradients of the first one, of all ranks, and the bytes of the weights at the end."""

    losses: list[float]
    gradients: dict[str, torch.Tensor]
    weights: bytes


def built(graph: LocalGraph, how: How) -> GraphModel:
    messages = Messages(graph.world, how.messages)
    model = hpcgnn.build_model(CONFIGS[how.model], graph, messages=messages, seed=1, compute=how.compute, int8=how.int8)
    messages.reseed(how.noise)
    return model


def trainer_of(graph: LocalGraph, how: How) -> hpcgnn.Trainer:
    """A trainer whose policies see made-up times."""
    model = built(graph, how)
    config = hpcgnn.TrainConfig(epochs=how.steps, lr=how.lr, policy=how.policy, eval_every=how.steps)
    times = staleness.made_up_times(len(model.aggregators))
    clock = Clock({epoch: seen | {"link_costs": COSTS} for epoch, seen in times.items()})
    return hpcgnn.Trainer(model, graph, config, stop=StopRequest(), clock=clock)


def train(world: World, path: Path, how: How) -> Trained:
    torch.set_num_threads(how.threads)
    trainer = trainer_of(hpcgnn.load(path, world), how)
    losses, gradients = [], {}
    for epoch in range(how.steps):
        losses.append(trainer.run_epoch()["loss"])
        if epoch == 0:
            gradients = {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}
    trainer.model.messages.drain()
    weights = b"".join(p.detach().numpy().tobytes() for p in trainer.model.parameters())
    return Trained(losses, gradients, weights)


# -- messages ----------------------------------------------------------------------------------------------------------


def integers_of(aggregator: Aggregator) -> Int8:
    """Make ``aggregator`` compute in 8-bit integers from now on."""
    int8 = make_int8(Int8Config(), aggregator.exchange.messages, always=True)
    int8.begin_epoch(0)
    aggregator.use_compute(int8)
    return int8


def own_rows(graph: LocalGraph, width: int = WIDTH) -> torch.Tensor:
    """Rows with values that are not around 0, so that a grid between the smallest and the largest value differs."""
    return torch.randn(graph.num_nodes, width, generator=torch.Generator().manual_seed(graph.world.rank)) + 2


def everyones(graph: LocalGraph, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """(N, F) sums over all ranks of the (m, F) rows of nodes with these original ids. Collective."""
    table = torch.zeros(graph.meta.num_nodes, rows.shape[1]).index_add_(0, ids, rows)
    return torch.from_numpy(graph.world.allreduce(table.numpy()))


def rows_of_the_halo(world: World, path: Path) -> None:
    """Check that a receiver has the sender's codes and scales and finds them again, while gradients are rounded as without
    integers.

    A rank's own rows may or may not be integers; they must be within one step of the original values.
    """
    graph = hpcgnn.load(path, world)
    halo, owned = make_halo(graph, messages=Messages(world, MessageConfig(8))), graph.num_nodes
    quantizer, x = integers_of(halo).quantizer, own_rows(graph).requires_grad_()
    extended = halo(x)
    own = quantizer.find(x)
    assert own is not None
    assert 0 < float((own.float() - x.detach()).abs().max()) < 0.1
    ids = torch.cat((graph.original_ids, graph.halo_ids))
    came = everyones(graph, own.float(), graph.original_ids)[ids[owned:]]
    assert torch.equal(extended[owned:], came)
    assert bool(((extended[:owned] - x).abs() <= own.scale[:, None]).all())
    known, before = quantizer.find(extended), quantizer.counts.quantized
    assert known is not None
    assert torch.equal(known.float()[owned:], came)
    assert torch.equal(known.codes[:owned], own.codes)
    assert torch.equal(known.scale[:owned], own.scale)
    csr = attention_edges(graph).csr
    weights = torch.ones(csr.num_entries, 2).requires_grad_()
    y = int8_autograd.spmm(csr, extended, weights, quantizer)
    assert quantizer.counts.quantized == before, "not once more"
    torch.testing.assert_close(y, int8_autograd.plain_spmm(csr, known.float()), rtol=1e-5, atol=1e-4)
    upstream = torch.randn(extended.shape, generator=torch.Generator().manual_seed(9 + world.rank)) + 1
    extended.backward(upstream)
    assert quantizer.find(upstream) is None
    returned = everyones(graph, upstream[owned:], ids[owned:])[graph.original_ids]
    rest = (x.grad - returned - upstream[:owned]).abs().max()
    step = float(upstream.max() - upstream.min()) / 255
    assert 0 < float(rest) <= 1.02 * step * (world.size - 1)


def sums_sent(aggregator: Aggregator, own: Any) -> torch.Tensor:
    """(s, F) float32 rows to send, from (n, F) integers."""
    return int8_autograd.plain_spmm(aggregator.plan.send, own.float())


def rows_of_gcn(world: World, path: Path, strategy: str) -> tuple[int, int]:
    """Check that copies of a row are sent unchanged while sums are rounded; return the numbers of both on all ranks."""
    graph = hpcgnn.load(path, world)
    aggregator = make_aggregator(graph, "gcn", strategy, messages=Messages(world, MessageConfig(8)))
    integers_of(aggregator)
    x, exchange = own_rows(graph), aggregator.exchange
    own, message = aggregator.start_step(x)
    exchange.wait(message)
    found = message.codec.received_rows(message.received)
    assert float((own.float() - x * aggregator.linear.right).abs().max()) < 0.1, "integers of what was scaled"
    wanted, _ = world.alltoallv(sums_sent(aggregator, own), exchange.send_counts)
    is_copy, _ = world.alltoallv((aggregator.rows.sources[0] >= 0).to(torch.uint8), exchange.send_counts)
    is_copy = is_copy.bool()
    assert bool(is_copy[torch.from_numpy(aggregator.plan.receive_from.is_post())].all())
    assert torch.equal(found[is_copy], wanted[is_copy])
    steps = (wanted.amax(1) - wanted.amin(1)) / 255
    assert bool(((found - wanted).abs() <= 1.1 * steps[:, None]).all())
    assert not bool((found == wanted)[~is_copy].all(1).any())
    z = aggregator.finish_step(own, message)
    exact = make_aggregator(graph, "gcn", strategy)(x)
    assert float((z - exact).norm() / exact.norm()) < 0.01
    counts = world.allreduce(np.array([int(is_copy.sum()), int((~is_copy).sum())]))
    return int(counts[0]), int(counts[1])


# -- rules -------------------------------------------------------------------------------------------------------------


def last_layers_results(world: World, path: Path, name: str, config: Int8Config, calls: list[str]) -> list[str]:
    """The integer kernels that are called in a step for the input of the softmax. calls: all calls, in order."""
    graph = hpcgnn.load(path, world)
    model = hpcgnn.build_model(LAST_LAYERS[name], graph, seed=1, compute=ALWAYS, int8=config)
    trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=9), stop=StopRequest())
    last = getattr(model, "final", getattr(model, "last", None))
    begun: list[int] = []
    within: list[str] = []
    if last is not None:
        last.register_forward_pre_hook(lambda *given: begun.append(len(calls)))
        last.register_forward_hook(lambda *given: within.extend(calls[begun[0] :]))
    calls.clear()
    trainer.step(0)
    return list(calls) if last is None else within


def scores_in_evaluation(world: World, path: Path, name: str, bits: int) -> None:
    """Check that scores are, bit for bit, those of the same weights in float32, in evaluation alone."""
    graph = hpcgnn.load(path, world)
    integers, floats = (built(graph, How(name, compute, MessageConfig(bits))) for compute in (ALWAYS, FLOAT32))
    scores = {}
    for training in (False, True):  # a pass in training moves running means
        for key, model in (("integers", integers), ("floats", floats)):
            model.train(training)
            model.begin_epoch(0)
            with torch.no_grad():
                scores[key] = model(graph.features)
        same = torch.equal(scores["integers"], scores["floats"])
        assert same == (not training), (
            f"training {training}, largest {(scores['integers'] - scores['floats']).abs().max()}"
        )


def too_few_bits(world: World, path: Path, most_error: float, error_scale: str = ROW) -> dict[str, Any]:
    """The outcome of a run for which 8 bits are too few. quantized: number of matrices in each epoch."""
    config = Int8Config(most_error=most_error, error_scale=error_scale)
    trainer = trainer_of(hpcgnn.load(path, world), How("sage", int8=config))
    summary = trainer.fit()
    names = {"computes": "compute", "quantized": "int8_quantized"}
    return {"summary": summary} | {key: [each[name] for each in trainer.records] for key, name in names.items()}


def go_on_alone(world: World, path: Path) -> list[float]:
    """The losses of a run that gives up integers in its first epoch, and of one that resumes it in float32."""
    graph = hpcgnn.load(path, world)
    gave_up = trainer_of(graph, How("sage", int8=Int8Config(most_error=1e-6)))
    gave_up.step(0)
    exact = trainer_of(graph, How("sage", FLOAT32))
    exact.model.load_state_dict(gave_up.model.state_dict())
    exact.optimiser.load_state_dict(gave_up.optimiser.state_dict())
    return [each.step(1)[0] for each in (gave_up, exact)]


def failure(world: World, path: Path, how: How) -> str:
    """The sentence that ends the first epoch on features with a NaN, before any weight has changed."""
    graph = hpcgnn.load(path, world)
    if world.rank == world.size - 1:
        graph.features[3, 2] = torch.nan
    trainer = trainer_of(graph, how)
    state = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    try:
        trainer.step(0)
    except HpcgnnError as error:
        assert all(torch.equal(state[name], value) for name, value in trainer.model.state_dict().items())
        return str(error)
    return "it trained on"


def agreed_uses(world: World, path: Path) -> tuple[str, str]:
    """The operations for which integers are used, and the arithmetic of the model."""
    model = hpcgnn.build_model(CONFIGS["gcn"], hpcgnn.load(path, world), compute="int8")
    return str(model.int8.uses), model.compute
