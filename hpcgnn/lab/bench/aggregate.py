"""The measurements of ``hpcgnn bench aggregate`` on one graph.

Three comparisons, each forward and backward:

- *kernel*: all contenders in one process, under the same allocator with warm memory
  (:func:`hpcgnn.base.process.keep_freed_memory`), ours without its pool. The machine's ceilings, narrow storage, and one
  thread beside several are measured as well.
- *user*: every contender in a process of its own, as users start it; ours reuses buffers.
- *ablation*: ours with each optimisation switched off in turn.

On a GPU only the first is measured, because torch allocates memory there for all contenders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcgnn.kernels import library
from hpcgnn.kernels.int8 import dot_products
from hpcgnn.lab.bench import graphs, studies
from hpcgnn.lab.bench.ceilings import last_level_cache_bytes
from hpcgnn.lab.bench.line_up import line_up
from hpcgnn.lab.bench.measure import Advance, Entry, Outcome, Place, interleave
from hpcgnn.lab.bench.measure import steps as steps_of
from hpcgnn.lab.bench.names import DIRECTIONS, HOST_NAME
from hpcgnn.lab.bench.ours import tuning_variants

ONE_THREAD = "@1"  # the end of keys of contenders that ran on one thread


@dataclass(frozen=True)
class Workload:
    """One graph, stored in the folder ``graph``, and the way to measure it. source: the source of the graph. device: torch's name
    of the device. dtypes: types, beside float32, that are measured with their conversions."""

    graph: Path
    source: str
    width: int
    threads: int
    rounds: int
    device: str = HOST_NAME
    dtypes: tuple[str, ...] = ()

    def place(self, *, warm: bool, graph: Path | None = None, **changes: Any) -> Place:
        """The process in which to measure it. graph: another graph in place of its own."""
        subject = studies.aggregation(graph or self.graph, self.width)
        return replace(Place(subject, self.threads, warm, device=self.device), **changes)


def kernel_entries(work: Workload) -> list[Entry]:
    """One process for all contenders; on the host, a second one with one thread.

    PyG's contenders come last. They need memory for messages, a row for each edge, and memory that later contenders keep would
    divide it.
    """
    together, chosen = work.place(warm=True), line_up(work.device)
    names = [contender.name for contender in (*chosen.ours, *chosen.rivals)]
    large = [contender.name for contender in chosen.rivals if contender.family == "pyg"]
    beside = [
        contender.name
        for contender in (*chosen.beside, *chosen.converted)
        if contender.dtype in ("float32", *work.dtypes)
    ]
    names = [*(name for name in names if name not in large), *beside, *large]
    entries = [Entry(name, name, together) for name in names]
    if work.device == HOST_NAME and work.threads > 1:
        single = replace(together, threads=1)
        entries += [Entry(name + ONE_THREAD, name, single) for name in ("ours", "ceiling.gather", "ceiling.copy")]
    return entries


def user_entries(work: Workload) -> list[Entry]:
    """A process for each contender that most people use; only for these, as all processes are in memory at the same time."""
    chosen = line_up(work.device)
    contenders = (*chosen.ours, *(rival for rival in chosen.rivals if rival.family in chosen.apart))
    return [Entry(contender.name, contender.name, work.place(warm=False), alone=True) for contender in contenders]


def ablation_entries(work: Workload, orders: dict[str, Path]) -> list[Entry]:
    """Ours, and ours without each optimisation. ``orders``: the same graph with its nodes in other orders."""
    warm, usual = work.place(warm=True), work.place(warm=False)
    entries = [Entry("ours", "ours", warm)]
    entries += [Entry(variant.name, variant.name, warm) for variant in tuning_variants()]
    entries += [Entry(name, name, warm) for name in ("ours.huge", "ceiling.gather", "ceiling.gather.huge")]
    for name in library.isas():
        place = work.place(warm=True, environment=(("HPCGNN_ISA", name),))
        entries.append(Entry(f"isa {name}", "ours", place))
    entries += [Entry(f"order {name}", "ours", work.place(warm=True, graph=path)) for name, path in orders.items()]
    off = work.place(warm=False, environment=(("HPCGNN_BUFFER_POOL", "off"),))
    entries.append(Entry("pool", "ours", usual))
    entries.append(Entry("pool, no huge pages", "ours", work.place(warm=False, huge_pages=False)))
    entries.append(Entry("no pool", "ours", off))
    return entries


def steps(entries: list[Entry], rounds: int) -> int:
    """The number of calls of ``advance`` for both directions."""
    return steps_of(entries, rounds, len(DIRECTIONS))


def measure(work: Workload, entries: list[Entry], advance: Advance) -> dict[str, Outcome]:
    """Measure ``entries``; return their outcomes by direction."""
    return interleave(entries, work.rounds, advance)


def describe(work: Workload) -> dict[str, Any]:
    """The facts of the graph, and the bytes and operations of one product."""
    facts = graphs.facts(work.graph)
    feature_bytes = facts["nodes"] * work.width * 4
    chosen = (
        {"dtypes": list(work.dtypes), "dot_products": dot_products(torch_device=work.device)} if work.dtypes else {}
    )
    return (
        facts
        | chosen
        | {
            "source": work.source,
            "device": work.device,
            "width": work.width,
            "feature_bytes": feature_bytes,
            "beyond_caches": feature_bytes > last_level_cache_bytes(work.device),
            "flop": facts["entries"] * work.width,
            "gathered_bytes": gathered_bytes(facts["entries"], work.width, 4),
        }
    )


def gathered_bytes(entries: int, width: int, value_bytes: int) -> int:
    """The bytes that a product gathers: a row of features and an index for each entry."""
    return entries * (width * value_bytes + 4)


PLANS: dict[str, Callable[[Workload], list[Entry]]] = {"kernel": kernel_entries, "user": user_entries}
