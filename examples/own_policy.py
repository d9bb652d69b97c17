"""A custom policy of bit-widths: 2 bits while the loss falls fast, and 8 bits afterwards.

    hpcgnn convert 'pyg:Cora?root=data' cora.h5 --row-normalise
    hpcgnn partition cora.h5 cora-2.h5 --parts 2
    mpirun -n 2 python -m mpi4py examples/own_policy.py cora-2.h5

To try it on a small generated graph: `mpirun -n 2 python -m mpi4py examples/own_policy.py --small`.

The policy also works on the command line: a program that imports this module and then calls `hpcgnn.cli.main.main()` is
`hpcgnn` with `train --bits falling --most-fall SHARE`. docs/how-to/add-a-policy.md explains the interface.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from small_graph import arguments, parts_of

import hpcgnn
from hpcgnn.base.settings import setting
from hpcgnn.exchange import Messages
from hpcgnn.policy.base import BitsPolicy, Observation, Setup
from hpcgnn.policy.config import BITS_POLICIES


@dataclass(frozen=True)
class FallingSettings:
    """Each setting is an option of `hpcgnn train`, a key of config.toml and an argument of PolicyConfig."""

    most_fall: float = setting(
        0.02, "Share of the loss; rows have 2 bits while the loss falls by more than this share in an epoch.", least=0
    )


@BITS_POLICIES.register("falling")
class Falling(BitsPolicy):
    """All ranks see the same losses, so they make the same decisions without messages."""

    summary = "2 bits while the loss falls fast, then 8"
    settings = (FallingSettings,)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._losses: list[float] = []

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Set the bit-width of all exchanges for this epoch."""
        falls = len(self._losses) < 2 or self._losses[-1] < self._losses[-2] * (1 - self._most_fall)
        for facts in self.all_facts:
            facts.exchange.row_bits = facts.exchange.uniform_bits(2 if falls else 8)
        return {}

    @property
    def _most_fall(self) -> float:
        return self.setup.config.section(FallingSettings).most_fall

    def observe(self, seen: Observation) -> None:
        """Remember the loss of an epoch."""
        self._losses = [*self._losses[-1:], seen.loss]

    def state(self) -> dict[str, Any]:
        """The values that a checkpoint keeps."""
        return {"losses": self._losses}

    def load(self, state: dict[str, Any], rank_state: dict[str, Any] | None = None) -> None:
        """Continue from the values of a checkpoint."""
        self._losses = list(state["losses"])


def main(parts: Path, epochs: int) -> None:
    """Train with the policy, and print the bit-widths of each epoch and the test accuracy."""
    graph = hpcgnn.load(parts)
    policy = hpcgnn.PolicyConfig("falling", most_fall=0.05)
    model = hpcgnn.build_model(hpcgnn.ModelConfig("gcn", layers=2, hidden=32), graph, messages=Messages(graph.world))
    trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=epochs, policy=policy))
    summary = trainer.fit()
    if graph.world.rank == 0:
        bits = ["/".join(record["bits"]["layer 2's gradients"]) for record in trainer.records]
        print(f"bits by epoch: {' '.join(bits)}")
        print(f"test accuracy {summary['test_metric_at_best_val']:.3f}")


if __name__ == "__main__":
    given = arguments(__doc__, epochs=100)
    with parts_of(given) as file:
        main(file, given.epochs)
