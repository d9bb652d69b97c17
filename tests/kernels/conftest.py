"""If there is a GPU, the kernels in Triton run on it, although the tests' tensors are on the host (under_test.py)."""

from __future__ import annotations

import torch
from gpu.proxy import on_device

from hpcgnn import kernels

if torch.cuda.is_available():
    kernels.register(on_device(torch.device("cuda", 0), "triton"))
