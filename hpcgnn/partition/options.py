"""The options of a partition."""

from __future__ import annotations

import os
from dataclasses import MISSING, dataclass
from pathlib import Path

from hpcgnn.base.errors import HpcgnnError, WrongValueError
from hpcgnn.base.settings import MOST_SEED, Checked, setting
from hpcgnn.plan import STRATEGIES

QUANTITIES = ("auto", "nodes", "edges", "train", "types", "work")
OBJECTIVES = ("cut", "volume", "rows")
METHODS = ("auto", "kaminpar", "parmetis", "ptscotch", "metis", "mtkahypar", "fennel", "ldg", "block", "random")
# The objectives that each method's own search minimises. The objective "rows" moves nodes after any method.
MINIMISED = dict.fromkeys(METHODS[1:], ("cut",)) | {"metis": ("cut", "volume"), "mtkahypar": ("volume",)}


@dataclass(frozen=True)
class PartitionOptions(Checked):
    """The options of ``hpcgnn partition``.

    num_parts: number of parts P. balance: the quantities to balance, any of ``QUANTITIES``. objective: the quantity to minimise;
    ``rows`` moves nodes after the partitioner, so that the minimum vertex covers shrink. plan: the strategy whose plan is stored
    with the parts, or ``none``. ranks_per_node: K; parts ``k * K`` to ``(k + 1) * K - 1`` are to share a node. jobs: number of
    processes that write the file; 0 stands for one for each core that this process may use.

    Raises:
        HpcgnnError: for an option with a value that is not allowed.
    """

    num_parts: int = setting(MISSING, least=1, most=2**31 - 1)
    method: str = setting("auto", choices=METHODS)
    objective: str = setting("cut", choices=OBJECTIVES)
    balance: tuple[str, ...] = setting(("auto", "train", "types"))
    seed: int = setting(0, least=0, most=MOST_SEED)
    force: bool = setting(False)
    plan: str = setting("hybrid", choices=(*STRATEGIES, "none"))
    ranks_per_node: int = setting(1, least=1)
    jobs: int = setting(0, least=0)

    @property
    def processes(self) -> int:
        """``jobs``, or the number of cores that this process may use."""
        return self.jobs or len(os.sched_getaffinity(0))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check()

    def check(self) -> None:
        """As :meth:`Checked.check`, and for quantities and ranks per node that cannot be."""
        super().check()
        balance, per_node = self.balance, self.ranks_per_node
        if not balance or len(set(balance)) < len(balance) or not set(balance) <= set(QUANTITIES):
            raise WrongValueError(
                f"--balance takes a comma list out of {', '.join(QUANTITIES)}, not {','.join(balance)!r}"
            )
        if self.num_parts % per_node:
            raise WrongValueError(
                f"--ranks-per-node must divide the number of parts, and {per_node} does not divide {self.num_parts}: take a "
                "multiple of it as --parts"
            )


def check_num_parts(graph: str | Path, num_nodes: int, num_parts: int) -> None:
    """Raise HpcgnnError for more parts than nodes, before any work is done for them."""
    if num_parts > num_nodes:
        raise HpcgnnError(
            f"{graph} has {num_nodes:,} nodes, too few for {num_parts:,} parts: ask for at most {num_nodes:,}"
        )
