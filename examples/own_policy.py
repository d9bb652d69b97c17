"""A policy of one's own: few bits while the loss falls fast, more once it does not.

    hpcgnn convert 'pyg:Cora?root=data' cora.h5 --row-normalise
    hpcgnn partition cora.h5 cora-2.h5 --parts 2
    mpirun -n 2 python -m mpi4py examples/own_policy.py cora-2.h5

or, with a graph that is made in a second, `mpirun -n 2 python -m mpi4py examples/own_policy.py --small`.

A module that registers a policy also serves the command line: `import own_policy` before `hpcgnn.cli.main.main()` adds
`--bits falling` and `--most-fall` to `hpcgnn train`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from small_graph import arguments, parts_of

import hpcgnn
from hpcgnn.comm import Messages
from hpcgnn.policy.base import BitsPolicy, Setup
from hpcgnn.policy.channel import Observation
from hpcgnn.policy.config import BITS_POLICIES
from hpcgnn.settings import setting


@dataclass(frozen=True)
class FallingSettings:
    """A setting is a flag of `hpcgnn train`, a key of a configuration, and an argument of PolicyConfig."""

    most_fall: float = setting(
        0.02, "2 bits while the loss falls by more than this share in an epoch, else 8.", least=0
    )


@BITS_POLICIES.register("falling")
class Falling(BitsPolicy):
    """All ranks see the same losses, so that all decide alike without a word between them."""

    summary = "2 bits while the loss falls fast, then 8"
    settings = (FallingSettings,)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._losses: list[float] = []

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Set the bits of all exchanges of this epoch."""
        falls = len(self._losses) < 2 or self._losses[-1] < self._losses[-2] * (1 - self._most_fall)
        for channel in self.channels:
            channel.exchange.bits = channel.exchange.uniform_bits(2 if falls else 8)
        return {}

    @property
    def _most_fall(self) -> float:
        return self.setup.config.section(FallingSettings).most_fall

    def observe(self, seen: Observation) -> None:
        """Note an epoch's loss."""
        self._losses = [*self._losses[-1:], seen.loss]

    def state(self) -> dict[str, Any]:
        """What a checkpoint is to keep."""
        return {"losses": self._losses}

    def load(self, state: dict[str, Any], rank_state: dict[str, Any] | None = None) -> None:
        """Go on from a checkpoint."""
        self._losses = list(state["losses"])


def main(parts: Path, epochs: int) -> None:
    """Train with the policy, and print the bits of each epoch."""
    graph = hpcgnn.load(parts)
    policy = hpcgnn.PolicyConfig("falling", most_fall=0.05)
    model = hpcgnn.build_model(hpcgnn.ModelConfig("gcn", layers=2, hidden=32), graph, messages=Messages(graph.world))
    trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=epochs, policy=policy))
    summary = trainer.fit()
    if graph.world.rank == 0:
        bits = [
            "/".join(sorted({b for counts in record["bits"].values() for b in counts})) for record in trainer.records
        ]
        print(f"bits by epoch: {' '.join(bits)}")
        print(f"test accuracy {summary['test_metric_at_best_val']:.3f}")


if __name__ == "__main__":
    given = arguments(__doc__, epochs=100)
    with parts_of(given) as file:
        main(file, given.epochs)
