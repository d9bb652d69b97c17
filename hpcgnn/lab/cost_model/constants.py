"""The constants of the cost model's equations, each with its unit and the bounds of a fit.

:mod:`hpcgnn.lab.cost_model.workload` counts work under these names, and :mod:`hpcgnn.lab.cost_model.equations` has the equations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

AGGREGATION, QUANTIZATION, OTHER, MESSAGES = "aggregation", "quantization", "other", "messages"
MACHINE = "machine"


@dataclass(frozen=True)
class Constant:
    """A constant. unit: unit of its value. start, low, high: start and bounds of a fit. phase: the phase to whose seconds it
    belongs. is_memory_bound: whether its work takes longer while other cores use the memory, too. what: a short description."""

    name: str
    unit: str
    start: float
    low: float
    high: float
    phase: str
    what: str
    is_memory_bound: bool = False


def _work(name: str, start: float, phase: str, what: str, *, bound: bool = False, spread: float = 10.0) -> Constant:
    return Constant(name, "s", start, start / spread, start * spread, phase, what, bound)


# Work of one core, in core-seconds per unit of what is counted: one column of a workload each, in this order.
WORK = (
    _work("entry", 6.5e-11, AGGREGATION, "adding one value of a row for one entry of L, S or R", bound=True),
    _work("entry_missed", 1.2e-10, AGGREGATION, "the same if the row is not in a core's cache", bound=True),
    _work("row", 3e-10, AGGREGATION, "writing one value of an aggregated row", bound=True),
    _work("code", 1e-10, AGGREGATION, "adding one value of a row directly from its codes", bound=True),
    _work("aggregation", 8e-5, AGGREGATION, "the calls of one aggregation in one direction"),
    _work("encode", 4e-10, QUANTIZATION, "encoding one value that is sent", bound=True),
    _work("decode", 2e-10, QUANTIZATION, "decoding one received value", bound=True),
    _work("quantization", 8e-5, QUANTIZATION, "the calls for one quantized exchange in one direction"),
    _work("product_float32", 1.4e-11, OTHER, "one multiplication and addition of a dense product in float32"),
    _work("product_bf16", 7e-12, OTHER, "the same in bf16"),
    _work("product_int8", 7e-12, OTHER, "the same in 8-bit integers"),
    _work("element", 4e-10, OTHER, "one value of an elementwise operation", bound=True),
    _work("element_missed", 6e-10, OTHER, "the same if the matrix is not in a core's cache", bound=True),
    _work("feature", 1e-10, OTHER, "one stored sparse feature times one column of a weight", bound=True),
    _work("attention", 3e-9, OTHER, "one edge's score for one head", bound=True),
    _work("weighted", 3e-10, OTHER, "adding one value of a neighbour's row times its attention", bound=True),
    _work("parameter", 4e-09, OTHER, "one parameter in the gradient bucket and the optimiser", bound=True),
    _work("layer", 3e-4, OTHER, "the calls of one layer in one direction"),
    _work("epoch", 2e-3, OTHER, "the calls of one epoch outside its layers"),
    _work("byte", 4e-10, MESSAGES, "one byte sent to or received from another node: copies and the network's protocol"),
    _work("shared_byte", 2e-10, MESSAGES, "one byte sent to or received from a rank of the same node"),
    _work("message", 2e-5, MESSAGES, "one message to or from another rank, with the calls that wait for it"),
)
COLUMN = {constant.name: column for column, constant in enumerate(WORK)}

# Of the machine and its virtual links; none multiplies work.
FACTORS = (
    Constant("contention", "", 1.2, 1.0, 3.0, MACHINE, "factor of memory-bound work while all cores compute"),
    Constant(
        "crowding",
        "",
        0.5,
        0.05,
        2.0,
        MACHINE,
        "share of other ranks' time on the same core that delays a rank for which others wait",
    ),
    Constant("rate_share", "", 0.95, 0.7, 1.0, MACHINE, "share of a link's rate that messages reach"),
    Constant(
        "link_imbalance",
        "",
        0.08,
        0.005,
        1.0,
        MACHINE,
        "relative delay of exchanges among many nodes, whose messages share links unevenly",
    ),
    Constant("latency", "s", 5e-5, 5e-6, 5e-3, MACHINE, "latency of a message between nodes"),
    Constant(
        "turn", "s", 3e-3, 3e-4, 3e-2, MACHINE, "longest time that a rank keeps a core for which other ranks wait"
    ),
    Constant("burst_bytes", "B", 512 * 1024, 1e3, 4e6, MACHINE, "bytes that pass a virtual link at once after a pause"),
)
ALL = WORK + FACTORS
BY_NAME = {constant.name: constant for constant in ALL}
Values = Mapping[str, float]


def defaults() -> dict[str, float]:
    """The start values of a fit, by name."""
    return {constant.name: constant.start for constant in ALL}
