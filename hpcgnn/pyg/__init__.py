"""The bridge from PyTorch Geometric: users' own models on many ranks. No other module of the core imports PyG's layers."""

from hpcgnn.base.errors import HpcgnnError

try:
    import torch_geometric  # noqa: F401
except ImportError as error:
    raise HpcgnnError("hpcgnn.distribute is for models of PyTorch Geometric: pip install torch-geometric") from error

from hpcgnn.pyg.distribute import distribute

__all__ = ["distribute"]
