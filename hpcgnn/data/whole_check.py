"""A check of a whole ``graph.h5`` or ``parts.h5`` by one process: every value and every checksum, plans included.

In training, each rank checks only the slab that it reads. Here one process checks slab after slab, in the memory of the largest
part's plan, O(parts), and for digests of parts 8 bytes a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import h5py
import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data import h5, plan_store
from hpcgnn.data.checks import sum_of_hashes
from hpcgnn.data.graph_file import SlabReader
from hpcgnn.data.parts_file import PartsFile
from hpcgnn.data.schema import Rule
from hpcgnn.data.stored_plan import StoredPlan
from hpcgnn.plan import AggregationPlan, SparseMatrix

_IDS_AT_A_TIME = 1 << 20


def count_steps(reader: SlabReader) -> int:
    """The number of times that :func:`verify` calls ``advance(1)``."""
    return reader.num_slabs * (1 + len(_plans(reader)))


def verify(reader: SlabReader, advance: Callable[[int], object] = lambda _: None) -> dict[str, Any]:
    """Check everything, and return a summary of the file.

    Raises:
        HpcgnnError: where a value or a checksum is wrong; the sentence names the file, the array and its part or block.
    """
    # It imports numba, and a wrong option of `hpcgnn check` is told before that.
    from hpcgnn.data.digest_sums import Digests

    ids, digests = 0, Digests(reader) if reader.digests else None
    for slab in range(reader.num_slabs):
        reader.verify([slab])
        if digests is not None:
            digests.add(slab)
        if isinstance(reader, PartsFile):
            ids += sum_of_hashes(reader.read("nodes/original_ids", *reader.part(slab)))
        advance(1)
    if isinstance(reader, PartsFile):
        _check_ids(reader, ids)
    if digests is not None and digests.values() != reader.digests:
        raise h5.damaged(reader.path, "its digests are not those of its data")
    plans = {name: _verify_plan(reader, name, advance) for name in _plans(reader) if isinstance(reader, PartsFile)}
    rules = [*reader.rules.values(), *(array.rule for plan in plans.values() for array in plan.arrays.values())]
    return {
        "kind": reader.KIND,
        "version": reader.attributes["version"],
        "uuid": reader.uuid,
        "nodes": reader.meta.num_nodes,
        "edges": reader.meta.num_edges,
        f"{reader.SLAB}s": reader.num_slabs,
        "arrays": len(rules),
        "bytes": sum(map(_num_bytes, rules)),
        "plans": list(plans),
        "plans_out_of_use": _unused_plans(reader),
        "checksums": reader.checksums is not None,
        "plans_without_checksums": [name for name, plan in plans.items() if plan.checksums is None],
    }


def _num_bytes(rule: Rule) -> int:
    return rule.dtype.itemsize * rule.shape[0] * rule.row_size


def _plans(reader: SlabReader) -> list[str]:
    """The strategies whose stored plans training would use."""
    if not isinstance(reader, PartsFile):
        return []
    return plan_store.stored_strategies(reader)


def _unused_plans(reader: SlabReader) -> list[str]:
    group = h5.child(reader.file, "plan")
    if not isinstance(group, h5py.Group):
        return []
    with h5.reading(reader.path, "plan"):
        return sorted(set(group) - set(_plans(reader)))


def _check_ids(parts: PartsFile, found: int) -> None:
    """Raise HpcgnnError unless ``found``, the sum of the hashes of all parts' ids, is that of 0 to N - 1. Each part's ids have
    been checked to be in range and to differ."""
    nodes, wanted = parts.meta.num_nodes, 0
    for begin in range(0, nodes, _IDS_AT_A_TIME):
        wanted += sum_of_hashes(np.arange(begin, min(begin + _IDS_AT_A_TIME, nodes)))
    if (found - wanted) % 2**64:
        raise h5.damaged(parts.path, f"nodes/original_ids are not the numbers from 0 to {nodes - 1}")


def _verify_plan(parts: PartsFile, strategy: str, advance: Callable[[int], object]) -> StoredPlan:
    """Check every part's plan, that senders and receivers agree about rows, and that each part's edges are all in the plans."""
    stored = StoredPlan(parts, strategy)
    stored.pairs()
    counted = np.zeros(parts.num_parts, np.int64)
    for part in range(parts.num_parts):
        for receiver, edges in _edges_of(part, stored.part(part, edges=False)):
            counted[receiver] += edges
        advance(1)
    for part, edges in enumerate(counted.tolist()):
        first, last = parts.slab_rows("edges/indices", part)
        if edges != last - first:
            raise _wrong_count(parts, strategy, edges, last - first, part)
    return stored


def _edges_of(part: int, plan: AggregationPlan[SparseMatrix]) -> Iterable[tuple[int, int]]:
    """``(receiver, edges)``: the number of edges to each receiver in the plan of ``part``. An entry that only moves a row is no
    edge."""
    yield part, plan.local.indices.size + plan.receive.indices.size - int(plan.receive_from.pre.sum())
    peers, post, pre = plan.send_to.peers, plan.send_to.post, plan.send_to.pre
    entries = np.diff(plan.send.indptr[np.concatenate(([0], np.cumsum(post + pre)))])
    yield from zip(peers.tolist(), (entries - post).tolist(), strict=True)


def _wrong_count(parts: PartsFile, strategy: str, counted: int, edges: int, part: int) -> HpcgnnError:
    return h5.damaged(parts.path, f"plan/{strategy} has {counted} edges, but part {part} has {edges}")
