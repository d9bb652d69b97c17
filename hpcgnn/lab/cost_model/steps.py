"""The training step of a model, layer by layer: pieces of work, and aggregations with their exchanges, from the model's settings
and widths alone; :mod:`hpcgnn.lab.cost_model.workload` computes the work of each rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.nn.config import IGNORE, MODELS, PIECES, HopSettings, ModelConfig, SGCSettings
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


Works = tuple[Work, ...]
_CALLS = (Work("layer"),)  # of a layer in one direction


@dataclass(frozen=True)
class Aggregation:
    """An aggregation of rows of ``width`` columns, with ``beside`` during its exchange. sends: whether its rows travel.
    wide: columns that travel beside rows of few bits."""

    width: int
    is_backward: bool
    beside: Works = ()
    sends: bool = True
    wide: int = 0


Piece = Work | Aggregation


@dataclass
class Steps:
    """A training step. Forward work records its backward work on a tape, which is read from its end, as autograd does.
    in_width, out_width: numbers of features and of classes. is_sparse: whether features are stored as sparse rows.
    learns_input: whether features need a gradient, as with embedded labels. keeps_input: whether their aggregation is computed
    once. repeats_input: whether their rows, which never change, are sent in each epoch. parameters: of the model. kept_width:
    columns for each node that are kept for gradients."""

    config: ModelConfig
    in_width: int
    out_width: int
    is_sparse: bool = False
    learns_input: bool = False
    keeps_input: bool = False
    repeats_input: bool = True
    forward: list[Piece] = field(default_factory=list)
    backward: list[Sequence[Piece]] = field(default_factory=list)
    parameters: int = 0
    kept_width: int = 0

    @property
    def is_halo(self) -> bool:
        """Return whether the rows of neighbours are sent unaggregated, whatever the strategy is."""
        return not MODELS[self.config.model].uses_strategy(self.config)

    @property
    def pieces(self) -> list[Piece]:
        """All pieces, in their order."""
        return [*self.forward, *(piece for pieces in reversed(self.backward) for piece in pieces)]

    def exchanges(self) -> list[Aggregation]:
        """All aggregations, in their order."""
        return [piece for piece in self.pieces if isinstance(piece, Aggregation)]

    def add(self, forward: Sequence[Piece], backward: Sequence[Piece]) -> None:
        """Add pieces, and the backward pieces for this place."""
        self.forward += forward
        self.backward.append(backward)

    def weight(self, in_width: int, out_width: int, is_input: bool = False) -> tuple[Works, Works]:
        """The product with a weight, and its gradients: of the weight, and of x unless it is an input that does not learn."""
        self.parameters += in_width * out_width
        if is_input and self.is_sparse:
            one = (Work("feature", "features", out_width),)
            return one, one
        product = (Work("product", "nodes", in_width * out_width),)
        return product, product * (2 if self.needs_gradient(is_input) else 1)

    def dense(self, in_width: int, out_width: int, is_input: bool = False) -> None:
        """A dense layer."""
        self.add(*self.weight(in_width, out_width, is_input))

    def elements(self, width: int, passes: float = 1.0) -> None:
        """Elementwise work in both directions; its input is kept."""
        self.kept_width += width
        work = (Work("element", "nodes", width, passes),)
        self.add(work, work)

    def aggregate(
        self, width: int, beside: Works = (), beside_back: Works = (), *, is_input: bool = False, wide: int = 0
    ) -> None:
        """An aggregation, with ``beside`` during its forward exchange and ``beside_back`` during its backward one."""
        if is_input and self.keeps_input:
            self.add(beside, beside_back)
            return
        backward = [Aggregation(width, True, beside_back, wide=wide)] if self.needs_gradient(is_input) else beside_back
        sends = self.repeats_input or self.needs_gradient(is_input)
        self.add([Aggregation(width, False, beside, sends, wide)], backward)

    def layers(self, widths: list[int] | None = None) -> Iterator[tuple[int, int, int]]:
        """The number and the widths of each layer, with the activation before all but the first."""
        usual = [self.in_width, *[self.config.hidden] * (self.config.layers - 1), self.out_width]
        for depth, (width, next_width) in enumerate(pairwise(widths or usual)):
            if depth:
                self.activation(width)
            yield depth, width, next_width

    def activation(self, width: int) -> None:
        """An activation, with its normalization."""
        self.elements(width)
        self.parameters += {"none": 0, "mean": 1}.get(self.config.norm_in_use, 2) * width

    def needs_gradient(self, is_input: bool) -> bool:
        """Return whether the rows of a layer need a gradient."""
        return self.learns_input or not is_input

    def is_linear_first(self, width: int, next_width: int, is_input: bool) -> bool:
        """As :class:`hpcgnn.nn.stack.LinearStack` decides."""
        needs, is_sparse = self.needs_gradient(is_input), self.is_sparse and is_input
        first = linear_first(width, next_width, needs_gradient=needs, is_sparse=is_sparse)
        return first and not (is_input and self.keeps_input)


def steps_of(
    config: ModelConfig,
    in_width: int,
    out_width: int,
    is_sparse: bool = False,
    learns: bool = False,
    keeps: bool = False,
    repeats: bool = True,
) -> Steps:
    """The training step of a model; arguments as of :class:`Steps`. Raises HpcgnnError for a model that is not covered."""
    maker = _MAKERS.get(MODELS[config.model].work)
    if maker is None or config.attention == "partial" or config.edge_types != IGNORE or config.halo == PIECES:
        covered = ", ".join(name for name in MODELS if MODELS[name].work in _MAKERS)
        raise HpcgnnError(
            f"the cost model covers the models {covered} (gat with --attention halo, and all with --edge-types ignore and --halo "
            f"whole), not of {config.model}"
        )
    steps = Steps(config, in_width, out_width, is_sparse, learns, keeps, repeats)
    maker(steps)
    steps.add([Work("element", "nodes", out_width, 2.0)], ())  # the loss and its gradient
    return steps


def _stack(steps: Steps, layer: Callable[[Steps, int, int, bool], None], widths: list[int] | None = None) -> None:
    for depth, width, next_width in steps.layers(widths):
        steps.add(_CALLS, _CALLS)
        layer(steps, width, next_width, depth == 0)


def _linear_layer(steps: Steps, width: int, next_width: int, is_input: bool, *, has_root: bool = False) -> None:
    """A layer of GCN, or with a weight for each node's own row, of SAGE."""
    steps.parameters += next_width
    root, root_back = steps.weight(width, next_width, is_input) if has_root else ((), ())
    if steps.is_linear_first(width, next_width, is_input):
        steps.dense(width, next_width, is_input)
        steps.aggregate(next_width, root, root_back)
        steps.elements(next_width)
        return
    late = Work("product", "nodes", width * next_width)
    steps.aggregate(width, root, (late, *root_back), is_input=is_input)
    steps.add([late], [late] if steps.needs_gradient(is_input) else ())
    steps.kept_width += width
    steps.parameters += width * next_width


def _gin_layer(steps: Steps, width: int, next_width: int, is_input: bool) -> None:
    hidden = steps.config.hidden
    steps.parameters += 3 * hidden + next_width
    if steps.is_linear_first(width, hidden, is_input):
        steps.dense(width, hidden, is_input)
        steps.aggregate(hidden)
        steps.elements(hidden, 2.0)
    else:
        scaled = (Work("element", "nodes", width),)
        steps.aggregate(width, scaled, scaled if steps.needs_gradient(is_input) else (), is_input=is_input)
        steps.elements(width)
        steps.dense(width, hidden, is_input)
    steps.elements(hidden, 2.0)
    steps.dense(hidden, next_width)


def _jknet(steps: Steps) -> None:
    hidden, layers = steps.config.hidden, steps.config.layers
    _stack(steps, _linear_layer, [steps.in_width, *[hidden] * layers])
    steps.activation(hidden)
    steps.elements(layers * hidden)
    steps.dense(layers * hidden, steps.out_width)


def _gcnii(steps: Steps) -> None:
    hidden, mixed = steps.config.hidden, (Work("element", "nodes", steps.config.hidden),)
    steps.dense(steps.in_width, hidden, is_input=True)
    steps.elements(hidden)
    for _ in range(steps.config.layers):
        steps.add(_CALLS, _CALLS)
        steps.elements(hidden)  # dropout
        steps.aggregate(hidden, mixed, mixed)
        steps.elements(hidden)
        steps.dense(hidden, hidden)
        steps.activation(hidden)
    steps.elements(hidden)
    steps.dense(hidden, steps.out_width)


def _sgc(steps: Steps) -> None:
    steps.dense(steps.in_width, steps.out_width, is_input=True)
    for _ in range(0 if steps.keeps_input else steps.config.section(SGCSettings).num_hops):
        steps.add(_CALLS, _CALLS)
        steps.aggregate(steps.out_width)


def _propagation(steps: Steps) -> None:
    for depth, width, next_width in steps.layers():
        steps.dense(width, next_width, is_input=depth == 0)
    mixed = (Work("element", "nodes", steps.out_width),)
    for _ in range(steps.config.section(HopSettings).num_hops):
        steps.add(_CALLS, _CALLS)
        steps.aggregate(steps.out_width, mixed, mixed)
        steps.elements(steps.out_width)


def _attention(steps: Steps) -> None:
    config, is_joint = steps.config, MODELS[steps.config.model].scores_joint_rows
    for depth, width, next_width in steps.layers():
        is_last = depth == config.layers - 1
        heads = config.output_heads if is_last else config.heads
        joined = next_width * heads if is_last else next_width
        steps.add(_CALLS, _CALLS)
        for _ in range(2 if is_joint else 1):
            steps.dense(width, joined, is_input=depth == 0)
        steps.aggregate(joined, wide=0 if is_joint else heads)
        joint = joined if is_joint else heads
        steps.kept_width += joined
        scores, weighted = Work("product", "halo", joined * heads), Work("weighted", "edges", joined)
        backward = [scores, scores, Work("attention", "edges", 2 * joint), weighted, weighted]
        steps.add([scores, Work("attention", "edges", joint), weighted], backward)
        steps.parameters += 2 * joined


_MAKERS: dict[str, Callable[[Steps], None]] = {
    "sage": partial(_stack, layer=partial(_linear_layer, has_root=True)),
    "gcn": partial(_stack, layer=_linear_layer),
    "gin": partial(_stack, layer=_gin_layer),
    "jknet": _jknet,
    "gcnii": _gcnii,
    "sgc": _sgc,
    "propagation": _propagation,
    "attention": _attention,
}
