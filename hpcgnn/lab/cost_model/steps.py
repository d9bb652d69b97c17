"""The training step of a model, layer by layer: pieces of work, and aggregations with their exchanges.

The steps follow from the model's settings and widths alone and are the same for every rank; :mod:`hpcgnn.lab.cost_model.workload`
computes the work of each rank. Forward work records its backward work on a tape, which is read from its end, as autograd
does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.nn.config import MODELS, HopSettings, ModelConfig, SGCSettings
from hpcgnn.nn.layers import linear_first


@dataclass(frozen=True)
class Work:
    """Work of one kind. name: of :data:`hpcgnn.lab.cost_model.constants.WORK`; a ``product`` has the run's arithmetic. of: what
    is counted on each rank: owned ``nodes``, nodes with their ``halo``, ``edges`` with a loop for each node, stored ``features``,
    or the ``rank`` once. columns: values of each. times: number of passes."""

    name: str
    of: str = "rank"
    columns: int = 1
    times: float = 1.0


@dataclass(frozen=True)
class Aggregation:
    """An aggregation of rows of ``width`` columns, with ``beside`` during its exchange."""

    width: int
    is_backward: bool
    beside: tuple[Work, ...] = ()


Piece = Work | Aggregation


@dataclass(frozen=True)
class Shape:
    """The properties of a graph that a model needs. in_width: number of features. out_width: number of classes. is_sparse:
    whether features are stored as sparse rows. learns_input: whether features need a gradient, as with embedded labels.
    keeps_input: whether their aggregation is computed once."""

    in_width: int
    out_width: int
    is_sparse: bool = False
    learns_input: bool = False
    keeps_input: bool = False


@dataclass(frozen=True)
class Steps:
    """The pieces of a training step. parameters: number of the model's parameters. kept_width: columns for each node that are
    kept for gradients. is_halo: whether the rows of neighbours are sent unaggregated, whatever the strategy is."""

    pieces: tuple[Piece, ...]
    parameters: int
    kept_width: int
    is_halo: bool

    def exchanges(self) -> list[Aggregation]:
        """All aggregations of a step, in their order."""
        return [piece for piece in self.pieces if isinstance(piece, Aggregation)]


def steps_of(config: ModelConfig, shape: Shape) -> Steps:
    """The pieces of a step.

    Raises:
        HpcgnnError: for a model that the cost model does not cover.
    """
    kind = MODELS[config.model]
    maker = _MAKERS.get(kind.work)
    if maker is None or config.attention == "partial":
        covered = ", ".join(name for name in MODELS if MODELS[name].work in _MAKERS)
        raise HpcgnnError(
            f"the cost model covers the models {covered} (gat with --attention halo), not of {config.model}"
        )
    tape = _Tape(config, shape)
    maker(tape)
    tape.add(Work("element", "nodes", shape.out_width, 2.0))  # the loss and its gradient
    backward = (piece for pieces in reversed(tape.backward) for piece in pieces)
    return Steps((*tape.forward, *backward), tape.parameters, tape.kept, not kind.uses_strategy(config))


class _Tape:
    """Pieces of the forward pass, and the backward pieces that each of them adds."""

    def __init__(self, config: ModelConfig, shape: Shape) -> None:
        self.config, self.shape = config, shape
        self.forward: list[Piece] = []
        self.backward: list[tuple[Piece, ...]] = []
        self.parameters, self.kept = 0, 0
        self.widths = [shape.in_width, *[config.hidden] * (config.layers - 1), shape.out_width]

    def add(self, *pieces: Piece) -> None:
        self.forward += pieces

    def back(self, *pieces: Piece) -> None:
        """Record the backward work for this place."""
        self.backward.append(pieces)

    def weight(
        self, in_width: int, out_width: int, is_input: bool = False
    ) -> tuple[tuple[Work, ...], tuple[Work, ...]]:
        """The product with a weight, and its gradients: of the weight, and of x unless it is an input that does not learn."""
        self.parameters += in_width * out_width
        if is_input and self.shape.is_sparse:
            one = (Work("feature", "features", out_width),)
            return one, one
        product = (Work("product", "nodes", in_width * out_width),)
        return product, product * (2 if self.needs_gradient(is_input) else 1)

    def dense(self, in_width: int, out_width: int, is_input: bool = False) -> None:
        forward, backward = self.weight(in_width, out_width, is_input)
        self.add(*forward)
        self.back(*backward)

    def elements(self, width: int, passes: float = 1.0) -> None:
        """Elementwise work in both directions; its input is kept."""
        self.kept += width
        work = Work("element", "nodes", width, passes)
        self.add(work)
        self.back(work)

    def aggregate(
        self, width: int, beside: tuple[Work, ...] = (), beside_back: tuple[Work, ...] = (), *, is_input: bool = False
    ) -> None:
        """An aggregation, with ``beside`` during its forward exchange and ``beside_back`` during its backward one."""
        if is_input and self.shape.keeps_input:
            self.add(*beside)
            self.back(*beside_back)
            return
        self.add(Aggregation(width, False, beside))
        self.back(*([Aggregation(width, True, beside_back)] if self.needs_gradient(is_input) else beside_back))

    def layers(self, widths: list[int]) -> Iterator[tuple[int, int, int]]:
        """The number and the widths of each layer, with the activation before all but the first."""
        for depth, (width, next_width) in enumerate(pairwise(widths)):
            if depth:
                self.activation(width)
            yield depth, width, next_width

    def activation(self, width: int) -> None:
        self.elements(width)
        self.parameters += 2 * width if self.config.norm != "none" else 0

    def layer_calls(self) -> None:
        self.add(Work("layer"))
        self.back(Work("layer"))

    def needs_gradient(self, is_input: bool) -> bool:
        return self.shape.learns_input or not is_input

    def is_linear_first(self, width: int, next_width: int, is_input: bool) -> bool:
        """As :class:`hpcgnn.nn.stack.LinearStack` decides."""
        needs, is_sparse = self.needs_gradient(is_input), self.shape.is_sparse and is_input
        first = linear_first(width, next_width, needs_gradient=needs, is_sparse=is_sparse)
        return first and not (is_input and self.shape.keeps_input)


Layer = Callable[[_Tape, int, int, bool], None]


def _stack(tape: _Tape, layer: Layer, widths: list[int] | None = None) -> None:
    for depth, width, next_width in tape.layers(widths or tape.widths):
        tape.layer_calls()
        layer(tape, width, next_width, depth == 0)


def _linear_layer(tape: _Tape, width: int, next_width: int, is_input: bool, *, has_root: bool = False) -> None:
    """A layer of GCN, or with a weight for each node's own row, of SAGE."""
    tape.parameters += next_width
    root, root_back = tape.weight(width, next_width, is_input) if has_root else ((), ())
    if tape.is_linear_first(width, next_width, is_input):
        tape.dense(width, next_width, is_input)
        tape.aggregate(next_width, root, root_back)
        tape.elements(next_width)
        return
    late = Work("product", "nodes", width * next_width)
    tape.aggregate(width, root, (late, *root_back), is_input=is_input)
    tape.add(late)
    if tape.needs_gradient(is_input):
        tape.back(late)
    tape.kept += width
    tape.parameters += width * next_width


_sage_layer = partial(_linear_layer, has_root=True)


def _gin_layer(tape: _Tape, width: int, next_width: int, is_input: bool) -> None:
    tape.parameters += 2 * next_width
    if tape.is_linear_first(width, next_width, is_input):
        tape.dense(width, next_width, is_input)
        tape.aggregate(next_width)
        tape.elements(next_width, 2.0)
    else:
        scaled = (Work("element", "nodes", width),)
        tape.aggregate(width, scaled, scaled if tape.needs_gradient(is_input) else (), is_input=is_input)
        tape.elements(width)
        tape.dense(width, next_width, is_input)
    tape.elements(next_width)
    tape.dense(next_width, next_width)


def _jknet(tape: _Tape) -> None:
    config = tape.config
    _stack(tape, _linear_layer, [tape.shape.in_width, *[config.hidden] * config.layers])
    tape.activation(config.hidden)
    tape.elements(config.layers * config.hidden)
    tape.dense(config.layers * config.hidden, tape.shape.out_width)


def _gcnii(tape: _Tape) -> None:
    hidden, mixed = tape.config.hidden, (Work("element", "nodes", tape.config.hidden),)
    tape.dense(tape.shape.in_width, hidden, is_input=True)
    tape.elements(hidden)
    for _ in range(tape.config.layers):
        tape.layer_calls()
        tape.elements(hidden)  # dropout
        tape.aggregate(hidden, mixed, mixed)
        tape.elements(hidden)
        tape.dense(hidden, hidden)
        tape.activation(hidden)
    tape.elements(hidden)
    tape.dense(hidden, tape.shape.out_width)


def _sgc(tape: _Tape) -> None:
    tape.dense(tape.shape.in_width, tape.shape.out_width, is_input=True)
    for _ in range(0 if tape.shape.keeps_input else tape.config.section(SGCSettings).num_hops):
        tape.layer_calls()
        tape.aggregate(tape.shape.out_width)


def _propagation(tape: _Tape) -> None:
    for depth, width, next_width in tape.layers(tape.widths):
        tape.dense(width, next_width, is_input=depth == 0)
    mixed = (Work("element", "nodes", tape.shape.out_width),)
    for _ in range(tape.config.section(HopSettings).num_hops):
        tape.layer_calls()
        tape.aggregate(tape.shape.out_width, mixed, mixed)
        tape.elements(tape.shape.out_width)


def _attention(tape: _Tape) -> None:
    config = tape.config
    for depth, width, next_width in tape.layers(tape.widths):
        is_last = depth == config.layers - 1
        heads = config.output_heads if is_last else config.heads
        joined = next_width * heads if is_last else next_width
        tape.layer_calls()
        if MODELS[config.model].scores_joint_rows:
            tape.dense(width, joined, is_input=depth == 0)
        tape.dense(width, joined, is_input=depth == 0)
        tape.aggregate(joined)
        joint = joined if MODELS[config.model].scores_joint_rows else heads
        tape.kept += joined
        scores, weighted = Work("product", "halo", joined * heads), Work("weighted", "edges", joined)
        tape.add(scores, Work("attention", "edges", joint), weighted)
        tape.back(scores, scores, Work("attention", "edges", 2 * joint), weighted, weighted)
        tape.parameters += 2 * joined


_MAKERS: dict[str, Callable[[_Tape], None]] = {
    "sage": partial(_stack, layer=_sage_layer),
    "gcn": partial(_stack, layer=_linear_layer),
    "gin": partial(_stack, layer=_gin_layer),
    "jknet": _jknet,
    "gcnii": _gcnii,
    "sgc": _sgc,
    "propagation": _propagation,
    "attention": _attention,
}
