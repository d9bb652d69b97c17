"""Full-batch graph neural network training over MPI."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hpcgnn.errors import HpcgnnError
from hpcgnn.version import __version__

if TYPE_CHECKING:
    from hpcgnn import kernels
    from hpcgnn.graph import load
    from hpcgnn.nn import ModelConfig, build_model
    from hpcgnn.nn.pyg.distribute import distribute
    from hpcgnn.policy import PolicyConfig
    from hpcgnn.train import RunConfig, TrainConfig, Trainer
    from hpcgnn.train.gradients import sum_gradients
    from hpcgnn.train.links import LinkConfig, split_links

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
    "kernels",
    "load",
    "split_links",
    "sum_gradients",
]

# Imported at first use: torch and MPI take seconds to start, and `hpcgnn convert --help` needs neither.
_HOMES = {
    "LinkConfig": "hpcgnn.train.links",
    "ModelConfig": "hpcgnn.nn",
    "PolicyConfig": "hpcgnn.policy",
    "RunConfig": "hpcgnn.train",
    "TrainConfig": "hpcgnn.train",
    "Trainer": "hpcgnn.train",
    "build_model": "hpcgnn.nn",
    "distribute": "hpcgnn.nn.pyg",
    "kernels": "hpcgnn.kernels",
    "load": "hpcgnn.graph",
    "split_links": "hpcgnn.train.links",
    "sum_gradients": "hpcgnn.train.gradients",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hpcgnn' has no attribute {name!r}")
    module = importlib.import_module(_HOMES[name])
    return module if name == "kernels" else getattr(module, name)
