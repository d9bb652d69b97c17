"""The backends that one test body runs for."""

from __future__ import annotations

import torch

# An interpreter runs it on tensors of the CPU; where there is a GPU, conftest.py takes these to it and back.
TRITON = "triton-on-gpu" if torch.cuda.is_available() else "triton"
BACKENDS = ("native", "jit", "reference", TRITON)
