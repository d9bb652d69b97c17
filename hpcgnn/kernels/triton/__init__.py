"""The kernels in Triton: one source for GPUs of NVIDIA (CUDA) and AMD (ROCm).

On the user's machine, Triton needs only a C compiler, for the few lines that start kernels.

If ``TRITON_INTERPRET=1`` is set before Triton is first imported, its interpreter runs the kernels on tensors of the CPU: slowly,
for tests without a GPU, and only if ``backend="triton"`` is asked for by name.
"""

from hpcgnn.kernels.backend import Backend
from hpcgnn.kernels.contract import Operators
from hpcgnn.kernels.messages import INT8_MESSAGES
from hpcgnn.kernels.triton import launch


def _load() -> Operators:
    from hpcgnn.kernels.triton import activation, dense, edges, int8, messages, rows, spmm, words

    codes = INT8_MESSAGES.reference  # torch's operations move the bytes on the device
    return Operators(spmm, edges, rows, dense, activation, activation, messages, words, int8, codes)


# "cuda" is torch's name for AMD's GPUs, too. An interpreter must be asked for by name.
_DEVICES, _RANK = (("cuda", "cpu"), None) if launch.interprets() else (("cuda",), 3)
BACKEND = Backend("triton", _load, devices=_DEVICES, rank=_RANK, missing=launch.missing)
