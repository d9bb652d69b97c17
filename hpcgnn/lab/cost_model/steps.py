"""The training step of a model, layer by layer: a list of pieces of work with the exchanges between them.

The steps follow from the model's settings and widths alone and are the same for every rank; :mod:`hpcgnn.lab.cost_model.workload`
computes the work of each rank. Forward work records its backward work on a tape, which is read from its end, as autograd
does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.nn.config import ModelConfig
from hpcgnn.nn.layers import linear_first


@dataclass(frozen=True)
class Spmm:
    """Rows of ``width`` columns, aggregated with L, S or R; ``X``: sparse features times a weight. transposed: backward."""

    matrix: str
    width: int
    transposed: bool = False


@dataclass(frozen=True)
class Product:
    """A product (rows, in) times (in, out), or one of its gradients, for owned nodes, or for owned and halo nodes."""

    in_width: int
    out_width: int
    of_halo: bool = False


@dataclass(frozen=True)
class Elements:
    """``passes`` times reading and writing (nodes, width) values. aggregates: whether it counts as aggregation."""

    width: int
    passes: float = 1.0
    of_halo: bool = False


@dataclass(frozen=True)
class Attention:
    """Scores and their softmax for every edge and each of the heads."""

    heads: int


@dataclass(frozen=True)
class Calls:
    """Calls whose number does not depend on sizes: of a ``layer`` or an ``aggregation``."""

    name: str


@dataclass(frozen=True)
class Start:
    """The start of an exchange: rows of ``width`` columns, encoded. number: number of the exchange in the step."""

    number: int
    width: int
    is_backward: bool


@dataclass(frozen=True)
class Wait:
    """The wait for an exchange, whose rows are then added with R (backward with S)."""

    number: int
    width: int
    is_backward: bool


@dataclass(frozen=True)
class Parameters:
    """The reduction of gradients, and the optimiser's step."""

    count: int


Piece = Spmm | Product | Elements | Attention | Calls | Start | Wait | Parameters


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

    def exchanges(self) -> list[Start]:
        """All exchanges of a step, in their order."""
        return [piece for piece in self.pieces if isinstance(piece, Start)]


def steps_of(config: ModelConfig, shape: Shape) -> Steps:
    """The pieces of a step.

    Raises:
        HpcgnnError: for a model that the cost model does not cover.
    """
    maker = _MAKERS.get(config.model)
    if maker is None or (config.model == "gat" and config.attention == "partial"):
        raise HpcgnnError(
            f"the cost model covers the models {', '.join(sorted(_MAKERS))} (gat with --attention halo), not of {config.model}"
        )
    tape = _Tape(config, shape)
    maker(tape)
    return tape.finished()


class _Tape:
    """Pieces of the forward pass, and the backward pieces that each of them adds."""

    def __init__(self, config: ModelConfig, shape: Shape) -> None:
        self.config, self.shape = config, shape
        self.pieces: list[Piece] = []
        self._back: list[Callable[[], None]] = []
        self.parameters, self.kept, self.is_halo, self._exchanges = 0, 0, False, 0

    def add(self, *pieces: Piece) -> None:
        self.pieces += pieces

    def back(self, *pieces: Piece) -> None:
        """Record the backward work for this place."""
        self._back.append(lambda: self.add(*pieces))

    def dense(self, in_width: int, out_width: int, *, is_input: bool = False, gradient_of_x: bool = True) -> None:
        """A product with a weight, and its gradients: of the weight, and of x unless it is an input."""
        self.parameters += in_width * out_width
        if is_input and self.shape.is_sparse:
            self.add(Spmm("X", out_width))
            self.back(Spmm("X", out_width, transposed=True))
            return
        product = Product(in_width, out_width)
        self.add(product)
        needs = gradient_of_x and not (is_input and not self.shape.learns_input)
        self.back(*(product,) * (2 if needs else 1))

    def elements(self, width: int, passes: float = 1.0) -> None:
        """Elementwise work in both directions; its input is kept."""
        self.kept += width
        self.add(Elements(width, passes))
        self.back(Elements(width, passes))

    def aggregate(
        self, width: int, beside: tuple[Piece, ...] = (), beside_back: tuple[Piece, ...] = (), *, gradient: bool = True,
        is_kept: bool = False,
    ) -> None:  # fmt: skip
        """An aggregation, with ``beside`` during its forward exchange and ``beside_back`` during its backward one."""
        if is_kept:
            self.add(*beside)
            self.back(*beside_back)
            return
        self._one_way(width, beside, is_backward=False)
        if gradient:
            self._back.append(lambda: self._one_way(width, beside_back, is_backward=True))
        elif beside_back:
            self.back(*beside_back)

    def _one_way(self, width: int, beside: tuple[Piece, ...], *, is_backward: bool) -> None:
        number, self._exchanges = self._exchanges, self._exchanges + 1
        first, last = ("R", "S") if is_backward else ("S", "R")
        self.add(Calls("aggregation"), Spmm(first, width, is_backward), Start(number, width, is_backward))
        self.add(*beside, Spmm("L", width, is_backward))
        self.add(Wait(number, width, is_backward), Spmm(last, width, is_backward))

    def layer_calls(self) -> None:
        self.add(Calls("layer"))
        self.back(Calls("layer"))

    def activation(self, width: int) -> None:
        self.elements(width)
        self.parameters += 2 * width if self.config.norm != "none" else 0

    def finished(self) -> Steps:
        self.add(Elements(self.shape.out_width, 2.0))  # the loss and its gradient
        for back in reversed(self._back):
            back()
        self.add(Parameters(self.parameters))
        return Steps(tuple(self.pieces), self.parameters, self.kept, self.is_halo)


def _linear_stack(tape: _Tape, layer: Callable[[_Tape, int, int, bool], None], widths: list[int]) -> None:
    for depth, (width, next_width) in enumerate(pairwise(widths)):
        if depth:
            tape.activation(width)
        tape.layer_calls()
        layer(tape, width, next_width, depth == 0)


def _is_first(tape: _Tape, width: int, next_width: int, is_input: bool) -> bool:
    """As :class:`hpcgnn.nn.models.LinearStack` decides."""
    shape = tape.shape
    needs = shape.learns_input or not is_input
    first = linear_first(width, next_width, needs_gradient=needs, is_sparse=shape.is_sparse and is_input)
    return first and not (is_input and shape.keeps_input)


def _sage_layer(tape: _Tape, width: int, next_width: int, is_input: bool) -> None:
    tape.parameters += next_width
    needs = tape.shape.learns_input or not is_input
    sparse = is_input and tape.shape.is_sparse
    root: tuple[Piece, ...] = (Spmm("X", next_width),) if sparse else (Product(width, next_width),)
    root_back: tuple[Piece, ...]
    root_back = (Spmm("X", next_width, True),) if sparse else (Product(width, next_width),) * (2 if needs else 1)
    if _is_first(tape, width, next_width, is_input):
        tape.dense(width, next_width, is_input=is_input)
        tape.parameters += width * next_width
        tape.aggregate(next_width, root, root_back)
        tape.elements(next_width)
        return
    late = Product(width, next_width)
    is_kept = is_input and tape.shape.keeps_input
    tape.aggregate(width, root, (late, *root_back), gradient=needs, is_kept=is_kept)
    tape.add(late)
    if needs:
        tape.back(late)
    tape.kept += width
    tape.parameters += 2 * width * next_width


def _gcn_layer(tape: _Tape, width: int, next_width: int, is_input: bool) -> None:
    tape.parameters += next_width
    if _is_first(tape, width, next_width, is_input):
        tape.dense(width, next_width, is_input=is_input)
        tape.aggregate(next_width)
        tape.elements(next_width)
        return
    late, needs = Product(width, next_width), tape.shape.learns_input or not is_input
    tape.aggregate(width, (), (late,), gradient=needs, is_kept=is_input and tape.shape.keeps_input)
    tape.add(late)
    if needs:
        tape.back(late)
    tape.kept += width
    tape.parameters += width * next_width


def _gin_layer(tape: _Tape, width: int, next_width: int, is_input: bool) -> None:
    tape.parameters += 2 * next_width
    if _is_first(tape, width, next_width, is_input):
        tape.dense(width, next_width, is_input=is_input)
        tape.aggregate(next_width)
        tape.elements(next_width, 2.0)
    else:
        needs = tape.shape.learns_input or not is_input
        scaled = (Elements(width),)
        is_kept = is_input and tape.shape.keeps_input
        tape.aggregate(width, scaled, scaled if needs else (), gradient=needs, is_kept=is_kept)
        tape.elements(width)
        tape.dense(width, next_width, is_input=is_input)
    tape.elements(next_width)
    tape.dense(next_width, next_width)


def _stack(layer: Callable[[_Tape, int, int, bool], None]) -> Callable[[_Tape], None]:
    def make(tape: _Tape) -> None:
        config, shape = tape.config, tape.shape
        _linear_stack(tape, layer, [shape.in_width, *[config.hidden] * (config.layers - 1), shape.out_width])

    return make


def _jknet(tape: _Tape) -> None:
    config, shape = tape.config, tape.shape
    _linear_stack(tape, _gcn_layer, [shape.in_width, *[config.hidden] * config.layers])
    tape.activation(config.hidden)
    tape.elements(config.layers * config.hidden)
    tape.dense(config.layers * config.hidden, shape.out_width)


def _gcnii(tape: _Tape) -> None:
    config, shape = tape.config, tape.shape
    tape.dense(shape.in_width, config.hidden, is_input=True)
    tape.elements(config.hidden)
    for _ in range(config.layers):
        tape.layer_calls()
        tape.elements(config.hidden)  # dropout
        tape.aggregate(config.hidden, (Elements(config.hidden),), (Elements(config.hidden),))
        tape.elements(config.hidden)
        tape.dense(config.hidden, config.hidden)
        tape.activation(config.hidden)
    tape.elements(config.hidden)
    tape.dense(config.hidden, shape.out_width)


def _sgc(tape: _Tape) -> None:
    from hpcgnn.nn.config import SGCSettings

    hops = tape.config.section(SGCSettings).num_hops
    tape.dense(tape.shape.in_width, tape.shape.out_width, is_input=True)
    for _ in range(0 if tape.shape.keeps_input else hops):
        tape.layer_calls()
        tape.aggregate(tape.shape.out_width)


def _propagation(tape: _Tape) -> None:
    from hpcgnn.nn.config import HopSettings

    config, shape = tape.config, tape.shape
    widths = [shape.in_width, *[config.hidden] * (config.layers - 1), shape.out_width]
    for depth, (width, next_width) in enumerate(pairwise(widths)):
        if depth:
            tape.activation(width)
        tape.dense(width, next_width, is_input=depth == 0)
    for _ in range(config.section(HopSettings).num_hops):
        tape.layer_calls()
        tape.aggregate(shape.out_width, (Elements(shape.out_width),), (Elements(shape.out_width),))
        tape.elements(shape.out_width)


def _attention(tape: _Tape) -> None:
    config, shape = tape.config, tape.shape
    tape.is_halo = True
    widths = [shape.in_width, *[config.hidden] * (config.layers - 1), shape.out_width]
    for depth, (width, next_width) in enumerate(pairwise(widths)):
        is_last = depth == config.layers - 1
        heads = config.output_heads if is_last else config.heads
        joined = next_width * heads if is_last else next_width
        if depth:
            tape.activation(width)
        tape.layer_calls()
        _attention_layer(tape, width, joined, heads, is_input=depth == 0)


def _attention_layer(tape: _Tape, width: int, joined: int, heads: int, *, is_input: bool) -> None:
    if tape.config.model == "gatv2":
        tape.dense(width, joined, is_input=is_input)
    tape.dense(width, joined, is_input=is_input)
    scores = Product(joined, heads, of_halo=True)
    tape.aggregate(joined)
    joint = joined if tape.config.model == "gatv2" else heads  # gatv2 makes its scores of joint rows of every edge
    tape.kept += joined
    tape.add(scores, Attention(joint), Spmm("A", joined))
    tape.back(scores, scores, Attention(2 * joint), Spmm("A", joined, transposed=True), Spmm("A", joined))
    tape.parameters += 2 * joined


_MAKERS: dict[str, Callable[[_Tape], None]] = {
    "sage": _stack(_sage_layer),
    "gcn": _stack(_gcn_layer),
    "gin": _stack(_gin_layer),
    "jknet": _jknet,
    "gcnii": _gcnii,
    "sgc": _sgc,
    "appnp": _propagation,
    "dagnn": _propagation,
    "gat": _attention,
    "gatv2": _attention,
}
