"""The device of each rank, with made-up GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.devices import Device
from hpcgnn.devices.gpu import Gpus
from hpcgnn.world import devices, transport
from hpcgnn.world.devices import choose_device
from hpcgnn.world.thread_world import ThreadWorld, on_threads

FOUR = ("gpu-a", "gpu-b", "gpu-c", "gpu-d")


class FakeDevice(Device):
    """The device of a rank that sees it as ``number``."""

    def __init__(self, number: int) -> None:
        self.torch_device = torch.device("cuda", number)
        self.is_used = False

    def use(self) -> None:
        self.is_used = True


class FakeGpus(Gpus):
    """The GPUs that a rank sees, by their identities."""

    def __init__(self, seen: Sequence[str] = FOUR, problem: str | None = None) -> None:
        self._seen, self._problem = seen, problem

    def problem(self) -> str | None:
        return self._problem

    def count(self) -> int:
        return len(self._seen)

    def identity(self, number: int) -> str:
        return self._seen[number]

    def device(self, number: int) -> FakeDevice:
        return FakeDevice(number)


@pytest.fixture(autouse=True)
def _kernels_run_on_gpus(monkeypatch):
    monkeypatch.setattr(devices.backend, "problem_on", lambda kind: None)


def chosen(
    asked: str | list[str],
    ranks: int = 2,
    *,
    seen: tuple[str, ...] | list[tuple[str, ...]] = FOUR,
    problems: Sequence[str | None] = (),
    nodes: str = "",
    ranks_per_gpu: int = 1,
) -> list[str]:
    """The device of each rank, or the sentence that refuses it. A list has a value for each rank, and nodes a letter."""

    def choose(world: ThreadWorld) -> str:
        if nodes:
            world.hosts = lambda: np.array([nodes.index(node) for node in nodes])
        wanted = asked if isinstance(asked, str) else asked[world.rank]
        gpus = FakeGpus(
            seen if isinstance(seen, tuple) else seen[world.rank], problems[world.rank] if problems else None
        )
        try:
            device = choose_device(world, wanted, ranks_per_gpu, gpus)
        except HpcgnnError as error:
            return str(error)
        assert device.torch_device.type == "cpu" or device.is_used
        return str(device.torch_device)

    return on_threads(ranks, choose)


NO_DRIVER = "torch cannot use any: no driver"
# How ranks choose, and the GPU of each rank by its number (- is the CPU).
CHOICES = {
    "a rank takes the GPU of its number on its node": [
        (("cuda", 4), {}, "0123"),
        (("cuda", 5), {"nodes": "xyxyy"}, "00112"),
    ],
    "or that which its launcher gave it": [(("cuda", 3), {"seen": [FOUR[:1], FOUR[1:2], FOUR[2:3]]}, "000")],
    "or one of several that its launcher gave it": [(("cuda",), {"seen": [FOUR[:2], FOUR[2:]]}, "00")],
    "virtual machines may give the same name to different GPUs": [(("cuda",), {"seen": ("a",), "nodes": "xy"}, "00")],
    "ranks that may share spread over all GPUs": [
        (("cuda", 2), {"ranks_per_gpu": 2}, "01"),
        (("cuda", 3), {"seen": FOUR[:2], "ranks_per_gpu": 3}, "001"),
        (("cuda", 5), {"seen": FOUR[:2], "ranks_per_gpu": 3}, "00011"),
        (("cuda:0", 3), {"nodes": "xyx", "ranks_per_gpu": 2}, "000"),
    ],
    "auto is a GPU for every rank or for none": [
        (("auto",), {}, "01"),
        (("auto",), {"problems": [None, NO_DRIVER]}, "--"),
        (("auto", 3), {"seen": FOUR[:2]}, "---"),
        (("auto",), {"seen": FOUR[:1]}, "--"),
        (("auto",), {"seen": FOUR[:1], "ranks_per_gpu": 2}, "00"),
    ],
    "ranks may ask for different devices": [
        ((["cpu", "cuda"],), {}, "-0"),
        ((["cpu", "cuda", "cpu", "cuda"], 4), {"seen": FOUR[:2]}, "-0-1"),
        ((["cuda:3", "cuda"],), {}, "31"),
        ((["auto", "cpu", "cuda"], 3), {}, "0-1"),
        ((["auto", "cuda:0"],), {}, "-0"),  # both would use it
        ((["auto", "cuda"],), {"problems": [NO_DRIVER, None]}, "-0"),
    ],
    "one GPU under two numbers is one": [(("cuda:0",), {"seen": [FOUR[:2], FOUR[1::-1]]}, "00")],
}


@pytest.mark.parametrize("cases", CHOICES.values(), ids=CHOICES)
def test_each_rank_has_its_device(cases):
    for asked, how, expected in cases:
        devices_of_ranks = ["cpu" if number == "-" else f"cuda:{number}" for number in expected]
        assert chosen(*asked, **how) == devices_of_ranks, (asked, how)


SHARED = "ranks 0, {} would share one GPU: start one rank for each GPU, or allow it with --ranks-per-gpu 2"
ASKED = "--device {} was asked for on rank {}, but "
REFUSED = [
    (("cuda", 5), {"seen": FOUR[:2]}, ASKED.format("cuda", 0) + "its node has 5 ranks for 2 GPUs: start one rank for each GPU, or"
     " let them share with --ranks-per-gpu 3"),
    (("cuda:0", 3), {"nodes": "xyx"}, SHARED.format(2)),
    (("cuda",), {"seen": [FOUR[:2], FOUR[1::-1]]}, SHARED.format(1)),
    ((["cuda:0", "cuda:9"],), {}, ASKED.format("cuda:9", 1) + "there are 4 here, cuda:0 to cuda:3"),
    ((["cuda:0", "cuda:9"],), {"seen": FOUR[:1]}, ASKED.format("cuda:9", 1) + "there is cuda:0 only"),
    (("cuda",), {"problems": [None, NO_DRIVER]}, ASKED.format("cuda", 1) + NO_DRIVER),
]  # fmt: skip


def test_what_cannot_be_is_one_sentence_on_all_ranks(monkeypatch):
    for asked, how, sentence in REFUSED:
        said = chosen(*asked, **how)
        assert said == [sentence] * len(said)
    for name in ("gpu", "cuda:", "cuda:-1", "cuda:x", "CUDA", "", " cuda"):
        sentence = f"device must be auto, cpu, cuda or cuda:N (AMD's GPUs are called cuda too), not {name!r}"
        assert chosen(["cpu", name]) == [sentence] * 2
    monkeypatch.setattr(devices.backend, "problem_on", lambda kind: f"no backend has kernels for {kind}")
    assert chosen("cuda") == [ASKED.format("cuda", 0) + "no backend has kernels for cuda"] * 2


def test_a_gpu_is_told_by_what_it_is_and_where_it_sits(monkeypatch):
    known = [{"uuid": "1234"}, {"uuid": "5678"}, *({"pci_bus_id": bus, "pci_device_id": 0} for bus in (3, 4))]
    found = [SimpleNamespace(name="a GPU", **properties) for properties in known]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: found[number])
    assert len({Gpus().identity(number) for number in range(4)}) == 4


# -- claims of libraries about GPUs ------------------------------------------------------------------------------------


def mpich(*supported: int) -> SimpleNamespace:
    def query(kind: int, answer: object) -> int:
        answer._obj.value = int(kind in supported)
        return 0

    return SimpleNamespace(MPIX_GPU_query_support=query)


@pytest.mark.parametrize(
    ("library", "nvidia", "amd"),
    [
        (SimpleNamespace(), False, False),
        (SimpleNamespace(MPIX_Query_cuda_support=lambda: 1), True, False),
        (SimpleNamespace(MPIX_Query_cuda_support=lambda: 0, MPIX_Query_rocm_support=lambda: 1), False, True),
        (SimpleNamespace(MPIX_Query_hip_support=lambda: 1), False, True),
        (mpich(0), True, False),
        (mpich(2), False, True),
        (mpich(), False, False),
        (SimpleNamespace(MPIX_GPU_query_support=lambda kind, answer: 1), False, False),  # the library does not know
    ],
)
def test_what_an_mpi_library_says_of_memory_of_gpus(monkeypatch, library, nvidia, amd):
    monkeypatch.setattr(transport.ctypes, "CDLL", lambda path: {"mpi4py.so": library}[path])
    mpi4py = SimpleNamespace(__file__="mpi4py.so")
    for hip, says in ((None, nvidia), ("6.2", amd)):
        monkeypatch.setattr(torch.version, "hip", hip)
        assert transport.says_yes(mpi4py, "cuda") is says
        assert transport.says_yes(mpi4py, "cpu") is False
