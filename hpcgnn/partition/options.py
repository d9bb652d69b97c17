"""The options of a partition."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hpcgnn.base.arguments import check_type, check_whole
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.plan import STRATEGIES

QUANTITIES = ("auto", "nodes", "edges", "train", "types", "work")
OBJECTIVES = ("cut", "volume", "rows")
METHODS = ("auto", "kaminpar", "parmetis", "ptscotch", "metis", "mtkahypar", "fennel", "ldg", "block", "random")
# The objectives that each method's own search minimises. The objective "rows" moves nodes after any method.
MINIMISED = dict.fromkeys(METHODS[1:], ("cut",)) | {"metis": ("cut", "volume"), "mtkahypar": ("volume",)}


@dataclass(frozen=True)
class PartitionOptions:
    """The options of ``hpcgnn partition``.

    num_parts: number of parts P. balance: the quantities to balance, any of ``QUANTITIES``. objective: the quantity to minimise;
    ``rows`` moves nodes after the partitioner, so that the minimum vertex covers shrink. plan: the strategy whose plan is stored
    with the parts, or ``none``. ranks_per_node: K; parts ``k * K`` to ``(k + 1) * K - 1`` are to share a node. jobs: number of
    processes that write the file; 0 stands for one for each core that this process may use.

    Raises:
        HpcgnnError: for an option with a value that is not allowed.
    """

    num_parts: int
    method: str = "auto"
    objective: str = "cut"
    balance: tuple[str, ...] = ("auto", "train", "types")
    seed: int = 0
    force: bool = False
    plan: str = "hybrid"
    ranks_per_node: int = 1
    jobs: int = 0

    @property
    def processes(self) -> int:
        """``jobs``, or the number of cores that this process may use."""
        return self.jobs or len(os.sched_getaffinity(0))

    def __post_init__(self) -> None:
        for name in ("num_parts", "seed", "ranks_per_node", "jobs"):
            check_whole(name, getattr(self, name), least=-(2**63))
            object.__setattr__(self, name, int(getattr(self, name)))  # JSON cannot represent NumPy's integers
        for name in ("method", "objective", "plan"):
            check_type(name, getattr(self, name), str)
        check_type("balance", self.balance, tuple, list)
        for name in self.balance:
            check_type("each quantity of balance", name, str)
        check_type("force", self.force, bool)
        if problem := self._problem():
            raise HpcgnnError(problem)

    def _problem(self) -> str:
        """A sentence about a value that is not allowed, or an empty text."""
        parts, per_node, balance = self.num_parts, self.ranks_per_node, self.balance
        if parts < 1:
            return f"num_parts, the number of parts, must be at least 1, not {parts}"
        if parts >= 1 << 31:
            return f"num_parts, the number of parts, must be below 2**31, not {parts}"
        if self.method not in METHODS:
            return f"unknown partitioning method {self.method!r}: choose from {', '.join(METHODS)}"
        if self.objective not in OBJECTIVES:
            return f"unknown objective {self.objective!r}: choose from {', '.join(OBJECTIVES)}"
        if not balance or len(set(balance)) < len(balance) or not set(balance) <= set(QUANTITIES):
            return f"--balance takes a comma list out of {', '.join(QUANTITIES)}, not {','.join(balance)!r}"
        if self.plan not in (*STRATEGIES, "none"):
            return f"unknown plan {self.plan!r}: choose from {', '.join(STRATEGIES)}, none"
        if per_node < 1 or parts % per_node:
            words = (
                f"--ranks-per-node must be at least 1 and divide the number of parts, and {per_node} does not divide"
            )
            return f"{words} {parts}: take a multiple of it as --parts"
        if self.jobs < 0:
            return f"--jobs must be at least 1, or 0 for one a core, not {self.jobs}"
        return "" if 0 <= self.seed < 1 << 63 else f"the seed must lie in 0 to 2**63 - 1, not {self.seed}"


def check_num_parts(graph: str | Path, num_nodes: int, num_parts: int) -> None:
    """Raise HpcgnnError for more parts than nodes, before any work is done for them."""
    if num_parts > num_nodes:
        raise HpcgnnError(
            f"{graph} has {num_nodes:,} nodes, too few for {num_parts:,} parts: ask for at most {num_nodes:,}"
        )
