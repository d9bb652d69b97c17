"""Distribution of a model that was written for one machine to all ranks."""

from __future__ import annotations

import zlib
from functools import partial
from typing import Any

import numpy as np
import torch

from hpcgnn.base.arguments import check_choice, check_type, check_whole
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import backends
from hpcgnn.nn.config import FLOAT32, INTEGERS, KEEP, RECOMPUTE, Int8Config, check_kept
from hpcgnn.plan import STRATEGIES
from hpcgnn.pyg.distribution import M, config_of, distribution_of, is_distributed, on_ranks, plain_copy
from hpcgnn.pyg.given import Call
from hpcgnn.pyg.rehearsal import rehearse
from hpcgnn.world import World, raise_on_all_ranks


def distribute(
    model: M,
    graph: LocalGraph,
    *,
    strategy: str = "hybrid",
    messages: MessageConfig | Messages | None = None,
    seed: int = 0,
    backend: str = "auto",
    check: bool = True,
    compute: str = FLOAT32,
    int8: Int8Config | None = None,
    activations: str = KEEP,
) -> M:
    """Distribute a model that was written with PyTorch Geometric for one process over all ranks. Collective.

    The result is called as before, with the tensors of this rank's part: ``distributed(graph.x, graph.edge_index)`` returns
    the (n, C) rows of the n nodes that this rank owns. It is a copy of the model that shares its parameters and buffers under
    the same names, so a ``state_dict`` goes from one to the other, and an optimiser of either trains both. Rank 0's weights
    are copied to all ranks.

    Gradients of a loss over this rank's nodes are this rank's share: ``hpcgnn.sum_gradients`` or a ``hpcgnn.Trainer`` adds
    them up. Layers that are linear in the neighbours' rows send rows or partial sums, whichever are fewer; other layers send
    the rows that their messages are made of. Norms take their statistics over the nodes of all ranks. ``torch.nn.Dropout``
    draws masks by original node id, the same for any number of ranks.

    Args:
        model: a module that is called as ``model(x, edge_index)`` or ``model(x, edge_index, edge_weight)``.
        graph: this rank's part, as ``hpcgnn.load`` returns it.
        strategy: ``pre``, ``post`` or ``hybrid``: where linear layers aggregate edges between parts.
        messages: bit-widths and coding of boundary messages; None sends float32.
        seed: of dropout and of the noise of rounding.
        backend: kernel backend, one of ``hpcgnn.kernels.backends()``, or ``auto``.
        check: rehearse the model on a tiny graph first: results and gradients on three ranks must equal those on one.
        compute: ``float32``; ``int8``, which trains linear layers and linear convolutions in 8-bit integers where that is
            faster; or ``int8-always``.
        int8: settings of ``int8`` and ``int8-always``.
        activations: ``keep``, or ``recompute``, with which backward computes the messages of layers again that are not linear in
            the neighbours' rows, from the rows that had arrived and with the same bits, so that no row of an edge is kept.
            Layers on dictionaries by type keep them; 8-bit integers, stale rows and delta coding are refused.

    Returns:
        The distributed model, of the class of ``model``.

    Raises:
        HpcgnnError: on every rank, if the model cannot be distributed; the text names the layer or the line, and the reason.
    """
    check_type("graph", graph, LocalGraph)
    with raise_on_all_ranks(graph.world, f"distribute {type(model).__name__}"):
        check_type("model", model, torch.nn.Module)
        check_type("messages", messages, MessageConfig, Messages, type(None))
        check_choice("strategy", strategy, STRATEGIES)
        check_choice("backend", backend, ("auto", *backends()))
        check_whole("seed", seed)
        check_type("check", check, bool)
        check_type("int8", int8, Int8Config, type(None))
        check_choice("compute", compute, (FLOAT32, *INTEGERS))
        check_choice("activations", activations, (KEEP, RECOMPUTE))
        _check_model(model)
        config = messages.config if isinstance(messages, Messages) else messages or MessageConfig()
        check_kept(config_of(model), activations, compute, int8 or Int8Config(), config)
        rehearsed = rehearse(model, graph) if check else None
    _agree_on_weights(model, graph.world)
    given = messages if isinstance(messages, Messages) else Messages(graph.world, messages, device=graph.device)
    if activations == RECOMPUTE:
        given.send_by_rank()
    given.reseed(int(seed))
    how: dict[str, Any] = {"backend": backend, "compute": compute, "int8": int8, "activations": activations}
    twin = on_ranks(model, graph, given, strategy=strategy, **how)
    if check:
        before = rehearsed, _flags(twin)
        distribution_of(twin).given.before_new = partial(_rehearse_again, twin, graph, before)
    return twin


def _rehearse_again(twin: torch.nn.Module, graph: LocalGraph, before: tuple[int | None, int], call: Call) -> None:
    """Rehearse a real call, unless the model was rehearsed with arguments of these kinds and is unchanged. Collective."""
    mine = np.array([before != (call.shape(), _flags(twin))], dtype=np.int64)
    if graph.world.allreduce(mine, "max", "the rehearsal of a model")[0]:
        with raise_on_all_ranks(graph.world, f"call {type(twin).__name__}"):
            rehearse(plain_copy(twin), graph, call)


def _flags(model: torch.nn.Module) -> int:
    """A number that is another one if a flag, a number or a text among the attributes of the model has changed."""
    simple = (bool, int, float, str, type(None))
    found = [
        (place, name, value)
        for place, module in model.named_modules()
        for name, value in sorted(vars(module).items())
        if isinstance(value, simple) and name != "training"
    ]
    return zlib.crc32(repr(found).encode())


def _check_model(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        described = f"{name} ({type(module).__name__})" if name else f"this {type(module).__name__}"
        if type(module).__name__ == "OptimizedModule":  # model.compile() is left behind by copies
            raise HpcgnnError(
                f"{described} is compiled, and a distributed model is not: give hpcgnn.distribute the model before torch.compile"
            )
        if is_distributed(module):
            raise HpcgnnError(f"{described} is distributed already")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise HpcgnnError(
                f"{name} has no shape yet: give its layer its input width in place of -1, or run the model once"
            )


@torch.no_grad()
def _agree_on_weights(model: torch.nn.Module, world: World) -> None:
    """Copy rank 0's parameters and buffers to all ranks: programs often do not seed their generators alike. Collective."""
    for tensor in (*model.parameters(), *model.buffers()):
        values = tensor.detach().flatten()
        world.broadcast_into(values)
        tensor.copy_(values.view(tensor.shape))
