"""An account of the memory of training: what each part of a rank takes, predicted before a graph is loaded, and measured.

The prediction follows from the program itself: a *trial* trains the model with the run's settings on two small stand-ins
(:mod:`hpcgnn.train.standin`), and a :class:`hpcgnn.train.ledger.Ledger` notes each allocation. The sizes in both tell how each
block grows with the graph. The allocations are then replayed at full size, with the rules of the buffer pool, so that the
prediction includes what is kept free.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import logging
import math
import threading
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError, WrongValueError
from hpcgnn.base.process import (
    LARGE_BYTES,
    StopRequest,
    peak_memory_bytes,
    resident_memory_bytes,
    return_free_memory,
)
from hpcgnn.devices import Device
from hpcgnn.exchange import Messages
from hpcgnn.graph import DISK
from hpcgnn.kernels import buffers
from hpcgnn.kernels.sizes import scaled_by
from hpcgnn.nn.build import build_model
from hpcgnn.nn.compute import choose_compute
from hpcgnn.nn.config import ACTIVATION_MODES, AUTO, INT8_ALWAYS, INTEGERS, KEEP, MODELS, ModelConfig
from hpcgnn.policy.config import FIXED, PolicyConfig
from hpcgnn.train.ledger import Ledger, held, kept
from hpcgnn.train.links import split_links
from hpcgnn.train.run_config import LINK, RunConfig, bytes_of
from hpcgnn.train.standin import PartFacts, StandIn, facts_of
from hpcgnn.train.trainer import Trainer
from hpcgnn.world import World, raise_on_all_ranks
from hpcgnn.world.thread_world import on_threads

LIBRARIES, FREE, TOTAL = "libraries", "kept free", "total"
GRAPH, PLAN, FEATURES, WEIGHTS = "graph", "plan", "features", "weights and optimiser"
ACTIVATIONS, TEMPORARY, HALO, MESSAGES = "activations", "temporary rows", "halo", "messages"
PREPARATION = "preparation"  # what making the model takes beyond an epoch
PARTS = (LIBRARIES, GRAPH, PLAN, FEATURES, WEIGHTS, ACTIVATIONS, TEMPORARY, HALO, MESSAGES, FREE, PREPARATION)
EPOCHS = 3
# A block of edges (hpcgnn.nn.edge_blocks) has a quarter of so many values: sizes that do not grow with the graph are seen.
_VALUES = 1 << 22
_FEWEST_NODES = 512
_LEAST_MEASURED = 1 << 16  # bytes of a block that a measurement notes
_GIB = 1 << 30
_ONE_TRIAL = threading.Lock()
_M_ARENA_MAX = -8  # an option of mallopt() in glibc's <malloc.h>


@dataclass(frozen=True)
class Size:
    """Bytes of a block: ``fixed + slope * share`` for a share of a part."""

    fixed: float
    slope: float

    @property
    def full(self) -> int:
        """Bytes of the whole part."""
        return max(0, round(self.fixed + self.slope))


@dataclass
class Trial:
    """The memory of training on a stand-in. share: its size. standing: bytes of arrays that are not in the ledger, by part. part:
    the part of blocks that stay, by number. halo: the share of halo rows among rows of owned and halo nodes, by their number."""

    share: float
    ledger: Ledger
    standing: Counter[str]
    part: dict[int, str]
    halo: dict[int, float]
    arrays: float = 0.0


def standing_parts(trainer: Trainer) -> Iterator[tuple[str, object]]:
    """The objects of a trainer that stay from epoch to epoch, by part, in the order in which they are looked at."""
    graph, model = trainer.graph, trainer.model
    yield FEATURES, [graph.features, trainer.task.features]
    yield GRAPH, [graph, getattr(trainer.task, "links", None), model.graph, model.keys]
    yield WEIGHTS, [[*model.parameters()], trainer.optimiser.state, trainer.bucket, trainer.best_state]
    yield MESSAGES, [model.messages.scratch, model.messages.kept]
    yield PLAN, trainer


def standing(trainer: Trainer, ledger: Ledger) -> tuple[Counter[str], dict[int, str]]:
    """Bytes that stay and are not in the ledger, by part; and the parts of the ledger's blocks that stay."""
    found: Counter[str] = Counter()
    of_block: dict[int, str] = {}
    seen: dict[object, object] = {id(ledger): ledger}
    for part, root in standing_parts(trainer):
        for address, num_bytes in held(root, seen):
            if (block := ledger.live.get(address)) is None:
                found[part] += num_bytes
            else:
                of_block[block] = part
    return found, of_block


def halo_shares(trainer: Trainer) -> dict[int, float]:
    """The share of halo rows among rows of the owned and the halo nodes, by their number: of all nodes, and of each type."""
    graph = trainer.graph
    pairs = [(graph.num_nodes, graph.halo_positions.size)]
    if graph._nodes_by_type is not None:
        by_type = graph.nodes_by_type
        pairs += [(own.numel(), halo.numel()) for own, halo in zip(by_type.owned, by_type.halo, strict=True)]
    return {own + halo: halo / (own + halo) for own, halo in pairs if halo}


def _from_torch(rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(rows, width, dtype=dtype)


def trial_config(run: RunConfig, compute: str) -> RunConfig:
    """The settings of a trial: the run's, with few epochs, bit-widths that no policy chooses, and arithmetic that is not measured
    again. compute: the arithmetic that the run uses."""
    given = run.train.policy
    kinds = PolicyConfig(FIXED, given.staleness).sections()  # of settings that fixed bits leave in use
    policy = PolicyConfig(FIXED, given.staleness, own=tuple(each for each in given.own if type(each) in kinds))
    train = replace(run.train, epochs=EPOCHS, eval_every=1, patience=0, policy=policy)
    messages = replace(run.messages, collective="alltoallv", node_aware="off", gpu_mpi="off")
    return replace(run, train=train, messages=messages, compute=INT8_ALWAYS if compute in INTEGERS else compute)


def trainer_of(run: RunConfig, graph: Any, messages: Messages, /, **how: Any) -> Trainer:
    """A trainer with a run's settings, for a graph and messages that follow them; ``how`` are the trainer's other arguments.
    Collective."""
    assert isinstance(run.model, ModelConfig)
    links = split_links(graph, run.links) if run.task == LINK else None
    model = build_model(
        run.model,
        graph if links is None else links.train,
        messages=messages,
        strategy=run.strategy,
        seed=run.seed,
        compute=run.compute,
        int8=run.int8,
        keep_input_aggregation=run.cache_input_aggregation,
        activations=run.activations,
    )
    return Trainer(model, links or graph, run.train, **how)


def trial(run: RunConfig, facts: PartFacts, share: float) -> Trial:
    """Train ``run``, made by :func:`trial_config`, on a stand-in of ``share`` of a part. Not collective: ranks are threads."""
    stand_in = StandIn(facts, share, on_disk=run.features == DISK)

    share_of_edges = stand_in.share_of_edges  # of this rank's among those of all threads

    def program(world: World) -> Trial | None:
        torch.set_num_threads(1)  # of this thread
        graph = stand_in.part(world)
        ledger = Ledger(new=_from_torch)
        with ledger if world.rank == 0 else buffers.provided_by(_from_torch):
            ledger.know(graph)
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            trainer = trainer_of(run, graph, Messages(world, run.messages), stop=StopRequest())
            trainer.ledger = ledger
            ledger.mark("start")
            for _ in range(EPOCHS):
                trainer.run_epoch()
            arrays = (tracemalloc.get_traced_memory()[1] - before) * share_of_edges
            if world.rank:
                return None
            return Trial(share, ledger, *standing(trainer, ledger), halo_shares(trainer), arrays)

    with _quiet(share):
        (found, *_) = on_threads(stand_in.ranks, program)
    assert found is not None
    return found


@contextlib.contextmanager
def _quiet(share: float) -> Iterator[None]:
    """Leave out the messages of a trial, which the run itself will give. Sizes from which a kernel works otherwise are those of
    ``share`` of a part. Both are of the process, so ranks that are threads make one trial after the other."""
    # Threads take memory from the heap of the process, which keeps it for the training itself, and not from heaps of their own.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
    with _ONE_TRIAL, scaled_by(share):
        log, threads = logging.getLogger("hpcgnn"), torch.get_num_threads()
        before, log.disabled = log.disabled, True
        tracemalloc.start(1)
        try:
            yield
        finally:
            tracemalloc.stop()
            log.disabled = before
            torch.set_num_threads(threads)


# -- at full size --------------------------------------------------------------------------------------------------------


def block_sizes(large: Trial, small: Trial) -> list[Size]:
    """The growth of the larger trial's blocks. The n-th block with a key is the same in both, unless one has more of them: those
    are pieces of a fixed size, or memory that was made anew for larger messages, and grow as the largest of them."""
    of_large, of_small = defaultdict[Any, list[int]](list), defaultdict[Any, list[int]](list)
    for found, of_key in ((large, of_large), (small, of_small)):
        for each in found.ledger.blocks:
            of_key[each.key].append(each.num_bytes)
    turns, sizes = Counter[Any](), []
    for each in large.ledger.blocks:
        mine, others = of_large[each.key], of_small[each.key] or [each.num_bytes]
        if len(mine) == len(others):
            sizes.append(line(large.share, each.num_bytes, small.share, others[turns[each.key]]))
            turns[each.key] += 1
        else:
            growth = line(large.share, max(mine), small.share, max(others)).full / max(mine)
            sizes.append(Size(each.num_bytes * growth, 0))
    return sizes


def line(share: float, num_bytes: float, other_share: float, other_bytes: float) -> Size:
    """The straight line through two measurements."""
    slope = (num_bytes - other_bytes) / (share - other_share) if share != other_share else num_bytes / share
    return Size(num_bytes - slope * share, slope)


class _Memory:
    """Memory of a pool that is only counted."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes

    def __len__(self) -> int:
        return self._num_bytes


def replayed(large: Trial, sizes: list[Size], *, is_limited: bool = False) -> tuple[int, set[int]]:
    """The most bytes that the process takes for the ledger's blocks at full size, and the numbers of the blocks in use when most
    are, in an epoch. is_limited: see :func:`predicted`."""
    pool, live, places = buffers.BufferPool(_Memory), dict[int, int](), dict[int, Any]()
    (start,) = (count for name, count in large.ledger.marks if name == "start")
    returned = most = used = 0  # returned: bytes of blocks that go back to the system when they are freed
    most_used, at_most = -1, set[int]()
    in_heap, most_in_heap = Counter[int](), Counter[int]()  # bytes by the size of blocks
    for number, event in enumerate(large.ledger.events):
        block = event if event >= 0 else ~event
        size, is_result = sizes[block].full, large.ledger.blocks[block].is_result
        change = size if event >= 0 else -size
        if event >= 0:
            live[block] = size
            pooled = is_result and size >= buffers.LEAST_BYTES
            places[block] = pool.take(size) if pooled else size >= LARGE_BYTES if is_limited else number < start
        else:
            del live[block]
        place = places[block]
        if isinstance(place, buffers.Buffer):
            if event < 0:
                pool.give_back(place)
        elif place:
            returned += change
        else:
            in_heap[_class_of(size)] += change
            most_in_heap[_class_of(size)] = max(most_in_heap[_class_of(size)], in_heap[_class_of(size)])
        most = max(most, returned + pool.held_bytes + most_in_heap.total())
        used += change
        if number >= start and used > most_used:
            most_used, at_most = used, set(live)
    return most, at_most


def prepared(large: Trial, sizes: list[Size]) -> int:
    """The most bytes of blocks at full size that were in use at one time before the first epoch."""
    (start,) = (count for name, count in large.ledger.marks if name == "start")
    used = itertools.accumulate(
        sizes[each].full if each >= 0 else -sizes[~each].full for each in large.ledger.events[:start]
    )
    return max(used, default=0)


def _class_of(size: int) -> int:
    """Blocks of a class differ by a factor of 1.4 at most. The C library's heap gives nothing back
    (:func:`hpcgnn.base.process.disable_malloc_trimming`), and small objects stay between its free pieces, so that blocks mostly
    take the places of others of about their size."""
    return round(2 * math.log2(max(size, 1)))


def parts_of(trial: Trial, sizes: list[Size], blocks: set[int]) -> Counter[str]:
    """Bytes by part. blocks: those in use at the peak. What the first forward pass leaves for its backward pass: activations,
    of which rows of halo nodes are the halo; all others that do not stay are temporary."""
    found: Counter[str] = Counter()
    for each in blocks:
        found[trial.part.get(each, TEMPORARY)] += sizes[each].full
    begin, end = (next(count for each, count in trial.ledger.marks if each == name) for name in ("step", "backward"))
    left = kept(trial.ledger, begin, end) - trial.part.keys()
    for each in left:
        in_halo = round(sizes[each].full * trial.halo.get(trial.ledger.blocks[each].rows, 0.0))
        found[HALO] += in_halo
        found[ACTIVATIONS] += sizes[each].full - in_halo
    found[TEMPORARY] = max(0, found[TEMPORARY] - found[HALO] - found[ACTIVATIONS])
    return found


def predicted(run: RunConfig, facts: PartFacts, *, is_limited: bool = False) -> dict[str, int]:
    """Bytes of this rank by part, without libraries, when it takes the most. Not collective.

    run: made by :func:`trial_config`. is_limited: whether large blocks return to the system when they are freed, as with
    ``--memory-limit``.
    """
    assert isinstance(run.model, ModelConfig)
    features = facts.features or facts.nodes * facts.meta.num_features
    values = max(max(facts.edges, facts.nodes) * max(run.model.hidden, 1), features)
    share = min(1.0, max(_VALUES / max(values, 1), _FEWEST_NODES / max(facts.nodes, 1)))
    _, large, small = (trial(run, facts, each) for each in (share / 2, share, share / 2))  # the first fills caches
    sizes = block_sizes(large, small)
    most, blocks = replayed(large, sizes, is_limited=is_limited)
    parts = parts_of(large, sizes, blocks)
    parts[FREE] = max(0, most - sum(parts.values()))
    stays = {
        part: line(large.share, large.standing[part], small.share, small.standing[part]).full for part in large.standing
    }
    before = prepared(large, sizes) + line(large.share, large.arrays, small.share, small.arrays).full
    parts[PREPARATION] = max(0, before - most)
    parts.update(stays)
    return_free_memory()
    return {name: parts[name] for name in PARTS if name != LIBRARIES}


# -- an account of a run -------------------------------------------------------------------------------------------------


@dataclass
class Account:
    """The memory of one rank of a run: ``predicted`` and ``measured`` bytes by part, empty if unknown. All ranks have one.

    is_due: whether the next epoch is to be measured: the first one of a rank on a CPU.
    """

    world: World
    predicted: dict[str, int]
    libraries: int
    measured: dict[str, int] = field(default_factory=dict)
    is_due: bool = True
    _peak_before: int = 0  # of resident memory, before the first epoch

    @contextlib.contextmanager
    def measuring(self, trainer: Trainer) -> Iterator[None]:
        """Measure the epoch that runs in this context. Not collective."""
        ledger, self._peak_before = Ledger(_LEAST_MEASURED), peak_memory_bytes()
        ledger.know(trainer)
        trainer.ledger = ledger
        ledger.mark("start")
        with ledger:
            yield
        trainer.ledger, self.is_due = None, False
        try:
            self.measured = self._measured(trainer, ledger)
        except Exception as error:  # of an object that only a user's program has: this rank must not end alone
            logging.getLogger("hpcgnn").warning(
                "the parts of memory are not known (%s: %s)", type(error).__name__, error
            )

    def _measured(self, trainer: Trainer, ledger: Ledger) -> dict[str, int]:
        found = Trial(1.0, ledger, *standing(trainer, ledger), halo_shares(trainer))
        sizes = [Size(each.num_bytes, 0) for each in ledger.blocks]
        _, blocks = replayed(found, sizes, is_limited=True)
        parts = parts_of(found, sizes, blocks) + found.standing
        return {LIBRARIES: self.libraries} | {name: parts[name] for name in PARTS if name not in (LIBRARIES, FREE)}

    def summary(self, peak: float) -> dict[str, dict[str, int]]:
        """``memory_bytes`` of ``summary.json``: the most bytes of any rank, by part and in total. peak: of resident bytes of this
        process. Collective."""
        rest = PREPARATION if peak <= self._peak_before else FREE
        measured = self.measured and self.measured | {rest: max(0, int(peak) - sum(self.measured.values()))}
        return {"predicted": self.largest(), "measured": self._largest(measured, peak)}

    def largest(self) -> dict[str, int]:
        """The most bytes of any rank by part and in total, as predicted; empty if unknown. Collective."""
        return self._largest(self.predicted, sum(self.predicted.values()))

    def _largest(self, parts: dict[str, int], total: float) -> dict[str, int]:
        mine = np.array([*(float(parts.get(part, 0)) for part in PARTS), total, len(parts) > 0])
        *most, is_known = self.world.allreduce(mine, "max", "the account of memory").tolist()
        return dict(zip((*PARTS, TOTAL), map(int, most), strict=True)) if is_known else {}


def account_of(world: World, path: Path, run: RunConfig, device: Device) -> tuple[Account, str]:
    """The account of a run that is about to start, and how it keeps activations. Without ``memory_limit``, the account only
    measures, and ``auto`` keeps. With it, the account has a prediction, and ``auto`` is the fastest way whose prediction is
    within the limit. Collective. Only what ranks hold before they read the graph is allocated.

    Raises HpcgnnError on every rank if the ranks of some machine would take more than the limit, or if that is unknown.
    """
    limit = bytes_of(run.memory_limit)
    if limit is None:
        return Account(world, {}, resident_memory_bytes()), KEEP if run.activations == AUTO else run.activations
    compute = choose_compute(world, run.compute, torch.float32, device)
    with raise_on_all_ranks(world, "predict the memory of the run"):
        facts = facts_of(world, path, strategy_of(run))
    hosts = world.hosts()
    for mode in ACTIVATION_MODES[:-1] if run.activations == AUTO else (run.activations,):
        try:
            (tried := replace(run, activations=mode)).check()
        except WrongValueError:  # it saves nothing
            continue
        account = _predicted_account(world, path, tried, facts, compute)
        by_rank = world.allgather(np.array([account.predicted[part] for part in PARTS], np.int64))  # O(P) memory
        totals = np.bincount(hosts, by_rank.sum(axis=1))
        if totals.max() <= limit:
            return account, mode
    raise _too_much(path, by_rank[hosts == totals.argmax()], limit)


def _predicted_account(world: World, path: Path, run: RunConfig, facts: PartFacts, compute: str) -> Account:
    """The prediction for one way of keeping activations. Collective."""
    with raise_on_all_ranks(world, "predict the memory of the run"):
        try:
            predictions = predicted(trial_config(run, compute), facts, is_limited=True)
        except Exception as error:  # of any part of the program: training itself will say what is wrong
            raise HpcgnnError(
                f"the memory of training on {path} is not known before it starts ({type(error).__name__}: {error}): leave out "
                "--memory-limit"
            ) from error
    libraries = resident_memory_bytes()
    return Account(world, {LIBRARIES: libraries} | predictions, libraries)


def _too_much(path: Path, by_rank: np.ndarray, limit: int) -> HpcgnnError:
    """The refusal. by_rank: (ranks of the machine that needs most, parts) bytes."""
    parts = dict(zip(PARTS, by_rank.sum(axis=0), strict=True))
    told = ", ".join(f"{name} {parts[name] / _GIB:.2f}" for name in sorted(PARTS, key=lambda name: -parts[name])[:4])
    ranks = "1 rank" if len(by_rank) == 1 else f"{len(by_rank)} ranks"
    return HpcgnnError(
        f"training on {path} needs {by_rank.sum() / _GIB:.2f} GiB on a machine with {ranks} (in GiB: {told}), but --memory-limit "
        f"is {limit / _GIB:.2f} GiB: use more machines, less --hidden or --layers, --activations auto, or allow more",
        agreed=True,
    )


def strategy_of(run: RunConfig) -> str:
    """The strategy of the plan that a run uses: attention over the halo has ``post``."""
    assert isinstance(run.model, ModelConfig)
    return run.strategy if MODELS[run.model.model].uses_strategy(run.model) else "post"
