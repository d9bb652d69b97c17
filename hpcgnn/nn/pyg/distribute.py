"""Distribution of a model that was written for one machine to all ranks."""

from __future__ import annotations

import torch

from hpcgnn.arguments import check_choice, check_type, check_whole
from hpcgnn.comm import MessageConfig, Messages, World, together
from hpcgnn.errors import HpcgnnError
from hpcgnn.graph import LocalGraph
from hpcgnn.kernels import backends
from hpcgnn.nn.compute_config import FLOAT32, INTEGERS, Int8Config
from hpcgnn.nn.config import check_differences
from hpcgnn.nn.pyg.distribution import M, is_distributed, on_ranks
from hpcgnn.nn.pyg.rehearsal import rehearse
from hpcgnn.plan import STRATEGIES


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
) -> M:
    """``model``, made of PyG's layers, for this rank's part of ``graph``: called as before, with the part's tensors. Collective.

    ``distributed(graph.x, graph.edge_index)`` gives the (n, C) rows of the nodes that this rank owns. Gradients of a loss over
    these are this rank's share: their sum over ranks is the whole graph's (:func:`hpcgnn.sum_gradients`, or a
    :class:`hpcgnn.Trainer`). The result is a copy of the model that shares its parameters and buffers, with the same names, so
    that a ``state_dict`` goes from one to the other and an optimiser of either trains both.

    Linear layers send partial sums or rows, whichever are fewer; others send the rows that their messages are made of. Norms
    take their statistics over all ranks' nodes. ``torch.nn.Dropout`` modules draw by original node id, the same for any P.

    Args:
        strategy: ``hybrid``, ``pre`` or ``post``, of linear layers.
        messages: bits and coding of what travels.
        seed: of dropout and of rounding.
        check: rehearse the model on a tiny graph first (:mod:`hpcgnn.nn.pyg.rehearsal`).
        compute: ``float32``, or ``int8``: linear layers and convolutions in 8-bit integers in training passes, where that is
            faster (:mod:`hpcgnn.nn.pyg.integers`); ``int8-always``: however slow it is.
        int8: the rules of the latter two.

    Raises:
        HpcgnnError: naming what in the model cannot be distributed, and why; the same on every rank.
    """
    check_type("graph", graph, LocalGraph)
    with together(graph.world, f"distribute {type(model).__name__}"):
        check_type("model", model, torch.nn.Module)
        check_type("messages", messages, MessageConfig, Messages, type(None))
        check_choice("strategy", strategy, STRATEGIES)
        check_choice("backend", backend, ("auto", *backends()))
        check_whole("seed", seed)
        check_type("check", check, bool)
        check_type("int8", int8, Int8Config, type(None))
        check_choice("compute", compute, (FLOAT32, *INTEGERS))
        _check_model(model)
        config = messages.config if isinstance(messages, Messages) else messages or MessageConfig()
        rates = (each.p for each in model.modules() if isinstance(each, torch.nn.Dropout))
        check_differences(config.message_coding, max(rates, default=0.0))
        if check:
            rehearse(model, graph)
    _agree_on_weights(model, graph.world)
    given = messages if isinstance(messages, Messages) else Messages(graph.world, messages, device=graph.device)
    given.reseed(int(seed))
    return on_ranks(model, graph, given, strategy=strategy, backend=backend, compute=compute, int8=int8)


def _check_model(model: torch.nn.Module) -> None:
    if is_distributed(model):
        raise HpcgnnError(f"this {type(model).__name__} is distributed already")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise HpcgnnError(
                f"{name} has no shape yet: give its layer its input width in place of -1, or run the model once"
            )


@torch.no_grad()
def _agree_on_weights(model: torch.nn.Module, world: World) -> None:
    """Copy rank 0's parameters and buffers to all ranks, because programs often do not seed their generators
    alike. Collective.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        values = tensor.detach().flatten()
        world.broadcast_into(values)
        tensor.copy_(values.view(tensor.shape))
