"""A device for tests, of torch's type ``standin``, whose memory is a second kind of host memory (standin.cpp).

torch refuses the same operations as for a GPU's tensors: mixing them with the host's tensors, and converting them to arrays.
Reads of the device by the host are counted (:func:`waits`). Its kernels are the native ones, on the same bytes. Copies that run
beside other work are late: their bytes arrive only after their event was queried several times, or waited for.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from gpu.proxy import Redirected, converted

from hpcgnn import devices, kernels
from hpcgnn.devices import Device
from hpcgnn.kernels.backend import FEATURES, Backend, choose
from hpcgnn.kernels.contract import OPERATORS, Operators
from hpcgnn.kernels.csr import Csr

SOURCE = Path(__file__).with_name("standin.cpp")
BUILD = Path(__file__).parents[2] / "build" / "standin"


class _Module(ModuleType):
    """The functions that torch needs of a type of devices."""

    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    _is_in_bad_fork = staticmethod(lambda: False)
    manual_seed_all = staticmethod(lambda seed: None)
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16])  # torch.utils.checkpoint asks for it


if torch.cuda.is_available():  # with another type of devices, autograd would not see the GPU any more
    WHERE = torch.device("cpu")
else:
    torch.utils.rename_privateuse1_backend("standin")  # before the name is used
    torch._register_device_module("standin", _Module("standin"))
    WHERE = torch.device("standin", 0)
ASKED_UNTIL_OVER = 3  # number of queries to which a late event answers no


def library() -> Path:
    """The compiled device, built once for each source and version of torch."""
    include, lib = Path(torch.__file__).parent / "include", Path(torch.__file__).parent / "lib"
    digest = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    path = BUILD / f"standin-{digest}.so"
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes may need it at once
        if not path.exists():
            temporary = path.with_suffix(".tmp")
            abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
            options = ["-std=c++20", "-O1", "-shared", "-fPIC", abi]
            includes = [f"-I{include}", f"-I{include}/torch/csrc/api/include"]
            libraries = [f"-L{lib}", "-ltorch", "-ltorch_cpu", "-lc10"]
            subprocess.run(["g++", *options, *includes, SOURCE, "-o", temporary, *libraries], check=True)
            temporary.rename(path)
    return path


def waits() -> int:
    """The number of times that the host has waited for a result of the device: numbers, rows, sizes that depend on values."""
    return torch.ops.standin.counts()[0]


def bytes_to_host() -> int:
    """The number of bytes copied from the device, except by :meth:`StandIn.copy`, which messages use."""
    return torch.ops.standin.counts()[1]


class Late:
    """An event. act: the device's work before it."""

    def __init__(self, act: Callable[[], object] = lambda: None, times: int = ASKED_UNTIL_OVER) -> None:
        self._act: Callable[[], object] | None = act
        self._left = times

    def query(self) -> bool:
        self._left -= 1
        if self._left < 0:
            self.synchronize()
        return self._act is None

    def synchronize(self) -> None:
        act, self._act = self._act, None
        if act is not None:
            act()


class StandIn(Device):
    """See :class:`hpcgnn.devices.Device`. times: number of queries to which a late event answers no."""

    name = "stand-in"
    times = ASKED_UNTIL_OVER
    takes_gpu_memory = False

    def __init__(self, torch_device: torch.device = WHERE) -> None:
        self.torch_device = torch_device
        self.copied_bytes = 0

    def record(self) -> Late:  # type: ignore[override]
        return Late(times=self.times)

    def follow(self, event: Late) -> None:  # type: ignore[override]
        event.synchronize()

    def copy(self, target: torch.Tensor, source: torch.Tensor, behind: Any = None) -> Late:  # type: ignore[override]
        self.copied_bytes += source.nbytes

        def act() -> None:
            if behind is not None:
                behind.synchronize()
            host_alias(target).copy_(host_alias(source))

        if target.is_cpu:
            target.view(torch.uint8).fill_(0xEE)  # data that are read too early are wrong
        return Late(act, self.times)

    def free_bytes(self) -> int:  # type: ignore[override]
        return 1 << 40

    def peak_bytes(self) -> int:  # type: ignore[override]
        return torch.ops.standin.counts()[4]


def host_alias(x: torch.Tensor) -> torch.Tensor:
    """The same memory as a tensor of the host."""
    return x if x.is_cpu else torch.ops.standin.alias(x)


_MATRICES: dict[Csr, Csr] = {}


def _matrix(csr: Csr) -> Csr:
    """The same matrix on the host. It is kept, because kernels store data with a matrix."""
    weight = None if csr.weight is None else host_alias(csr.weight)
    if csr.structure not in _MATRICES:
        indptr, indices = host_alias(csr.indptr), host_alias(csr.indices)
        _MATRICES[csr.structure] = Csr(indptr, indices, csr.num_cols, check=False)
    plain = _MATRICES[csr.structure]
    return plain if weight is None else plain.with_weight(weight)


def _call_here(function: Callable[..., Any], *given: Any) -> Any:
    """Call a kernel with the same bytes as tensors of the host."""
    result = function(*(converted(value, lambda tensor: host_alias(tensor.detach()), _matrix) for value in given))
    is_count = function.__name__ in ("encode_rows", "decode_rows")
    return torch.as_tensor(result).to(WHERE) if is_count or isinstance(result, torch.Tensor) else result


def backend_of(name: str) -> Backend:
    """The kernels of another backend, for the stand-in."""

    def load() -> Operators:
        return Operators(**{each.name: Redirected(choose(each, name), _call_here) for each in OPERATORS})

    return Backend("standin", load, devices=("standin",), dtypes=FEATURES, rank=9)


@functools.cache
def standin(kernels_of: str = "native") -> StandIn:
    """The device. The first call in a process registers it with torch and hpcgnn."""
    torch.ops.load_library(str(library()))
    torch.utils.generate_methods_for_privateuse1_backend()
    devices.register("standin", StandIn)
    kernels.register(backend_of(kernels_of))
    found = devices.device_of(WHERE)
    assert isinstance(found, StandIn)
    return found
