"""The backends with which a test body runs."""

from __future__ import annotations

import torch

# Triton's interpreter runs kernels on tensors of the CPU. If there is a GPU, conftest.py copies these there and back.
TRITON = "triton-on-gpu" if torch.cuda.is_available() else "triton"
BACKENDS = ("native", "jit", "reference", TRITON)
