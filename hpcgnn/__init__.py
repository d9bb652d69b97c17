"""Full-batch graph neural network training over MPI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.lazy import attributes
from hpcgnn.base.version import __version__

if TYPE_CHECKING:
    from hpcgnn import kernels
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
    "HpcgnnError",
    "LinkConfig",
    "ModelConfig",
    "PolicyConfig",
    "RunConfig",
    "TrainConfig",
    "Trainer",
    "__version__",
    "build_model",
    "distribute",
    "from_networkx",
    "from_pyg",
    "gather",
    "kernels",
    "load",
    "max",
    "mean",
    "mean_loss",
    "min",
    "softmax",
    "split_links",
    "sum",
    "sum_gradients",
    "to_dgl",
    "to_pyg",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__getattr__ = attributes(
    __name__,
    {
        "LinkConfig": "hpcgnn.train.config",
        "ModelConfig": "hpcgnn.nn.config",
        "PolicyConfig": "hpcgnn.policy.config",
        "RunConfig": "hpcgnn.train.run_config",
        "TrainConfig": "hpcgnn.train.config",
        "Trainer": "hpcgnn.train.trainer",
        "build_model": "hpcgnn.nn.build",
        "distribute": "hpcgnn.pyg.distribute",
        "from_networkx": "hpcgnn.sources.convert",
        "from_pyg": "hpcgnn.sources.convert",
        "gather": "hpcgnn.train.gather",
        "kernels": "hpcgnn.kernels",
        "load": "hpcgnn.graph.local_graph",
        "max": "hpcgnn.nn.whole_graph",
        "mean": "hpcgnn.nn.whole_graph",
        "mean_loss": "hpcgnn.nn.whole_graph",
        "min": "hpcgnn.nn.whole_graph",
        "softmax": "hpcgnn.nn.whole_graph",
        "split_links": "hpcgnn.train.links",
        "sum": "hpcgnn.nn.whole_graph",
        "sum_gradients": "hpcgnn.train.optimiser",
        "to_dgl": "hpcgnn.data.to_memory",
        "to_pyg": "hpcgnn.data.to_memory",
    },
)
