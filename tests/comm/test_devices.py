"""The device of each rank, with made-up GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from hpcgnn.comm import devices, gpu_mpi
from hpcgnn.comm.devices import choose_device
from hpcgnn.comm.thread_world import ThreadWorld, on_threads
from hpcgnn.devices.cpu import CpuDevice
from hpcgnn.devices.gpus import Gpus
from hpcgnn.errors import HpcgnnError

FOUR = ("gpu-a", "gpu-b", "gpu-c", "gpu-d")


class FakeDevice(CpuDevice):
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
    asked: str | Sequence[str],
    *,
    ranks: int = 2,
    seen: Callable[[int], Gpus] = lambda rank: FakeGpus(),
    nodes: Sequence[int] | None = None,
    ranks_per_gpu: int = 1,
) -> list[str]:
    """The device of each rank, or the sentence that refuses it. nodes: the node of each rank."""

    def choose(world: ThreadWorld) -> str:
        if nodes is not None:
            world.hosts = lambda: np.array([nodes.index(node) for node in nodes])
        wanted = asked if isinstance(asked, str) else asked[world.rank]
        try:
            device = choose_device(world, wanted, ranks_per_gpu, seen(world.rank))
        except HpcgnnError as error:
            return str(error)
        assert device.torch_device.type == "cpu" or device.is_used
        return str(device.torch_device)

    return on_threads(ranks, choose)


def one_sentence(said: list[str]) -> str:
    assert said == said[:1] * len(said)
    return said[0]


def test_a_rank_takes_the_gpu_of_its_number_on_its_node():
    assert chosen("cuda", ranks=4) == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert chosen("cuda", ranks=5, nodes=["x", "y", "x", "y", "y"]) == [
        "cuda:0",
        "cuda:0",
        "cuda:1",
        "cuda:1",
        "cuda:2",
    ]


def test_a_rank_takes_the_gpu_that_its_launcher_gave_it():
    assert chosen("cuda", ranks=3, seen=lambda rank: FakeGpus(FOUR[rank : rank + 1])) == ["cuda:0"] * 3


def test_the_same_gpu_of_two_nodes_is_not_one():
    """Virtual machines may give the same name to different GPUs."""
    assert chosen("cuda", seen=lambda rank: FakeGpus(["gpu-a"]), nodes=["x", "y"]) == ["cuda:0"] * 2


def test_more_ranks_than_gpus_must_be_allowed():
    said = one_sentence(chosen("cuda", ranks=5, seen=lambda rank: FakeGpus(FOUR[:2])))
    assert said == (
        "--device cuda was asked for on rank 0, but its node has 5 ranks for 2 GPUs: start one rank for each GPU, or let them "
        "share with --ranks-per-gpu 3"
    )
    shared = chosen("cuda", ranks=5, seen=lambda rank: FakeGpus(FOUR[:2]), ranks_per_gpu=3)
    assert shared == ["cuda:0"] * 3 + ["cuda:1"] * 2


def test_ranks_that_may_share_spread_over_all_gpus():
    assert chosen("cuda", ranks=2, ranks_per_gpu=2) == ["cuda:0", "cuda:1"]
    assert chosen("cuda", ranks=3, seen=lambda rank: FakeGpus(FOUR[:2]), ranks_per_gpu=3) == [
        "cuda:0",
        "cuda:0",
        "cuda:1",
    ]


def test_a_gpu_that_several_ranks_would_take_is_refused():
    said = one_sentence(chosen("cuda:0", ranks=3, nodes=["x", "y", "x"]))
    assert said == "ranks 0, 2 would share one GPU: start one rank for each GPU, or allow it with --ranks-per-gpu 2"
    assert chosen("cuda:0", ranks=3, nodes=["x", "y", "x"], ranks_per_gpu=2) == ["cuda:0"] * 3


def test_one_gpu_under_two_numbers_is_one():
    orders = [FOUR[:2], FOUR[1::-1]]
    assert chosen("cuda:0", seen=lambda rank: FakeGpus(orders[rank])) == ["cuda:0"] * 2
    said = one_sentence(chosen("cuda", seen=lambda rank: FakeGpus(orders[rank])))
    assert said.startswith("ranks 0, 1 would share one GPU")


@pytest.mark.parametrize(
    ("seen", "there"), [(FOUR, "there are 4 here, cuda:0 to cuda:3"), (FOUR[:1], "there is cuda:0 only")]
)
def test_a_number_that_there_is_not(seen, there):
    said = one_sentence(chosen(["cuda:0", "cuda:9"], seen=lambda rank: FakeGpus(seen)))
    assert said == f"--device cuda:9 was asked for on rank 1, but {there}"


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cuda:x", "CUDA", "", " cuda"])
def test_names_that_there_are_not(name):
    said = one_sentence(chosen(["cpu", name]))
    assert said.startswith("device must be auto, cpu, cuda or cuda:N (AMD's GPUs are called cuda too), not ")
    assert said.endswith(repr(name))


def test_a_rank_without_a_driver_says_so_for_all():
    reasons = [None, "torch cannot use any: no driver"]
    said = one_sentence(chosen("cuda", seen=lambda rank: FakeGpus(problem=reasons[rank])))
    assert said == "--device cuda was asked for on rank 1, but torch cannot use any: no driver"


def test_kernels_are_needed_too(monkeypatch):
    monkeypatch.setattr(devices.backend, "problem_on", lambda kind: f"no backend has kernels for {kind}")
    said = one_sentence(chosen("cuda"))
    assert said == "--device cuda was asked for on rank 0, but no backend has kernels for cuda"


def test_auto_is_a_gpu_for_every_rank_or_for_none():
    reasons = [None, "torch cannot use any: no driver"]
    assert chosen("auto") == ["cuda:0", "cuda:1"]
    assert chosen("auto", seen=lambda rank: FakeGpus(problem=reasons[rank])) == ["cpu"] * 2
    assert chosen("auto", ranks=3, seen=lambda rank: FakeGpus(FOUR[:2])) == ["cpu"] * 3
    assert chosen("auto", seen=lambda rank: FakeGpus(FOUR[:1])) == ["cpu"] * 2
    assert chosen("auto", seen=lambda rank: FakeGpus(FOUR[:1]), ranks_per_gpu=2) == ["cuda:0"] * 2


def test_ranks_may_ask_for_different_devices():
    assert chosen(["cpu", "cuda"]) == ["cpu", "cuda:0"]
    assert chosen(["cpu", "cuda", "cpu", "cuda"], ranks=4, seen=lambda rank: FakeGpus(FOUR[:2])) == [
        "cpu",
        "cuda:0",
        "cpu",
        "cuda:1",
    ]
    assert chosen(["cuda:3", "cuda"]) == ["cuda:3", "cuda:1"]
    assert chosen(["auto", "cpu", "cuda"], ranks=3) == ["cuda:0", "cpu", "cuda:1"]
    assert chosen(["auto", "cuda:0"]) == ["cpu", "cuda:0"]  # both would use it
    reasons = ["no driver", None]
    assert chosen(["auto", "cuda"], seen=lambda rank: FakeGpus(problem=reasons[rank])) == ["cpu", "cuda:0"]


def test_a_launcher_may_give_each_rank_several():
    assert chosen("cuda", seen=lambda rank: FakeGpus(FOUR[2 * rank : 2 * rank + 2])) == ["cuda:0", "cuda:0"]


class About:
    """A GPU's properties, as torch describes them."""

    def __init__(self, **known: object) -> None:
        self.name = "a GPU"
        self.__dict__ |= known


def test_a_gpu_is_told_by_what_it_is_and_where_it_sits(monkeypatch):
    found = [
        About(uuid="1234"),
        About(uuid="5678"),
        About(pci_bus_id=3, pci_device_id=0),
        About(pci_bus_id=4, pci_device_id=0),
    ]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: found[number])
    assert len({Gpus().identity(number) for number in range(4)}) == 4


# -- claims of libraries about GPUs ------------------------------------------------------------------------------------


class Library:
    """The symbols of an MPI library."""

    def __init__(self, **symbols: object) -> None:
        self.__dict__ |= symbols


class Mpi:
    """The functions of mpi4py that are used."""

    __file__ = "mpi4py.so"


def mpich(*supported: int) -> Library:
    def query(kind: int, answer: object) -> int:
        answer._obj.value = int(kind in supported)
        return 0

    return Library(MPIX_GPU_query_support=query)


@pytest.mark.parametrize(
    ("library", "nvidia", "amd"),
    [
        (Library(), False, False),
        (Library(MPIX_Query_cuda_support=lambda: 1), True, False),
        (Library(MPIX_Query_cuda_support=lambda: 0, MPIX_Query_rocm_support=lambda: 1), False, True),
        (Library(MPIX_Query_hip_support=lambda: 1), False, True),
        (mpich(0), True, False),
        (mpich(2), False, True),
        (mpich(), False, False),
        (Library(MPIX_GPU_query_support=lambda kind, answer: 1), False, False),  # the library does not know
    ],
)
def test_what_an_mpi_library_says_of_memory_of_gpus(monkeypatch, library, nvidia, amd):
    monkeypatch.setattr(gpu_mpi.ctypes, "CDLL", lambda path: {"mpi4py.so": library}[path])
    for hip, says in ((None, nvidia), ("6.2", amd)):
        monkeypatch.setattr(torch.version, "hip", hip)
        assert gpu_mpi.says_yes(Mpi, "cuda") is says
        assert gpu_mpi.says_yes(Mpi, "cpu") is False
