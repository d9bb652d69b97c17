"""Full-batch graph neural network training over MPI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.lazy import attributes
from hpcgnn.base.version import __version__

if TYPE_CHECKING:
    from hpcgnn import kernels
    from hpcgnn.data.names import names
    from hpcgnn.data.to_memory import to_dgl, to_pyg
    from hpcgnn.graph.local_graph import load
    from hpcgnn.nn.build import build_model
    from hpcgnn.nn.config import ModelConfig
    from hpcgnn.nn.whole_graph import max, mean, mean_loss, min, softmax, sum
    from hpcgnn.policy.config import PolicyConfig
    from hpcgnn.pyg.distribute import distribute
    from hpcgnn.sources.convert import from_networkx, from_pyg
    from hpcgnn.train.config import LinkConfig, TrainConfig
    from hpcgnn.train.gather import gather
    from hpcgnn.train.links import split_links
    from hpcgnn.train.optimiser import sum_gradients
    from hpcgnn.train.run_config import RunConfig
    from hpcgnn.train.trainer import Trainer

__all__ = [
    "HpcgnnError", "LinkConfig", "ModelConfig", "PolicyConfig", "RunConfig", "TrainConfig", "Trainer", "__version__",
    "build_model", "distribute", "from_networkx", "from_pyg", "gather", "kernels", "load", "max", "mean", "mean_loss", "min",
    "names", "softmax", "split_links", "sum", "sum_gradients", "to_dgl", "to_pyg",
]  # fmt: skip

__getattr__ = attributes(__name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
