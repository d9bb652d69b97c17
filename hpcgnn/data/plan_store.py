"""Plans inside ``parts.h5``, which are made part by part in bounded memory, and read slab by slab.

    /plan/STRATEGY/          attributes: plan_version, parts_uuid, edges_digest
        M_indptr, M_indices, M_edges      for M in L, S, R: the CSR slabs of all parts, one after another
        M_offsets (P+1, 2) int64          first element of each part's slab in M_indptr, and in M_indices and M_edges
        D_offsets (P+1) int64, D_peers, D_post, D_pre (pairs) int64      for D in send, recv: the sparse table of pairs

        checksums (arrays, P) uint64      see :mod:`hpcgnn.data.checksums`

``indptr`` slabs start at 0. Columns are local: owned nodes for L and S, received rows for R.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hpcgnn.base import whole_file
from hpcgnn.data import checksums, h5, plan_pieces
from hpcgnn.data.parts_file import PartsFile
from hpcgnn.data.plan_assembly import assemble
from hpcgnn.data.plan_worker import make_pieces
from hpcgnn.data.stored_plan import StoredPlan, plan_attributes, wanted_attributes
from hpcgnn.plan import STRATEGIES, AggregationPlan, SparseMatrix


def is_stored(parts: PartsFile, strategy: str) -> bool:
    """Return whether the file has a plan for ``strategy``, of the current version of plans, made for these parts and edges."""
    group = h5.child(parts.file, f"plan/{strategy}")
    if group is None:
        return False
    found, wanted = plan_attributes(group), wanted_attributes(parts)
    return all(found[name] == wanted[name] for name in found.keys() & wanted.keys())


def stored_strategies(parts: PartsFile) -> list[str]:
    """The strategies whose plans are stored and current, in the order of ``STRATEGIES``."""
    return [strategy for strategy in STRATEGIES if is_stored(parts, strategy)]


def read_plan(parts: PartsFile, strategy: str, part: int) -> AggregationPlan[SparseMatrix]:
    """The stored plan of one part. Raises HpcgnnError where it is damaged."""
    return StoredPlan(parts, strategy).part(part)


def read_all_pairs(parts: PartsFile, strategy: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """``(sender, receiver, post, pre)`` of all pairs that exchange rows, each (pairs,) int64, for reports."""
    return StoredPlan(parts, strategy).pairs()


def store_plans(
    path: str | Path, strategies: list[str], advance: Callable[[int], object] = lambda _: None, *, jobs: int = 1
) -> list[str]:
    """Make the plans of ``strategies`` that are missing or of an older version, and add them to ``path``. Not collective.

    ``jobs`` processes plan part by part, each in O(edges of the largest part) memory; other data is in files. The file is
    copied to a temporary one beside it, which is extended and renamed, so that ``path`` is complete at any moment. ``advance``
    is called once per part. Returns the strategies whose plans were made.
    """
    whole_file.remove_left(Path(path).parent)
    with PartsFile(path) as parts:
        missing = [strategy for strategy in strategies if not is_stored(parts, strategy)]
    if not missing:
        return []
    with whole_file.replacing(path) as temporary, whole_file.temporary_folder(path) as folder:
        shutil.copyfile(path, temporary)
        for strategy in missing:
            make_pieces(temporary, strategy, folder, range(_num_parts(temporary)), jobs, advance)
            add_plan(temporary, strategy, folder)
            plan_pieces.remove(folder, strategy)
    return missing


def _num_parts(path: Path) -> int:
    with PartsFile(path) as parts:
        return parts.num_parts


def add_plan(path: Path, strategy: str, folder: Path) -> None:
    """Add the plan whose pieces are in ``folder`` to ``path``, a file that does not have its final name yet."""
    with PartsFile(path, "r+") as parts:
        assemble(parts, strategy, folder)
        _seal(parts, strategy)


def seal_plans(parts: PartsFile) -> None:
    """Write the checksums of the present contents of all plans in a file that is open for writing."""
    for strategy in stored_strategies(parts):
        _seal(parts, strategy)


def _seal(parts: PartsFile, strategy: str) -> None:
    """Read the plan back and write its checksums. The bytes are still in the system's cache, so this takes as long as loading."""
    with h5.writing(parts.path, f"plan/{strategy}"):
        parts.file.flush()
    plan = StoredPlan(parts, strategy, sealed=False)
    table = {name: np.zeros(parts.num_parts, np.uint64) for name in plan.arrays}
    for name, of_parts in table.items():
        if name in plan.offsets:
            of_parts[0] = checksums.of_arrays([plan.offsets[name]])
            continue
        for part in range(parts.num_parts):
            of_parts[part] = checksums.of_pieces(plan.arrays[name].pieces(*plan.slab_rows(name, part)))
    with h5.writing(parts.path, f"checksums of plan/{strategy}"):
        group = parts.file[f"plan/{strategy}"]
        checksums.store(group, table, plan_attributes(group))
