"""Programs for ranks: benches on the stand-in device, in separate processes (see ``device_ranks`` in tests/conftest.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lab.bench.contenders import HEADS, WIDTH, matrix, results_of
from standin import standin

import hpcgnn
from hpcgnn.devices import CPU
from hpcgnn.lab.bench import exchange, gemm_contenders, quantize, sddmm_contenders
from hpcgnn.lab.bench.contenders import DEVICE
from hpcgnn.lab.bench.gemm_contenders import GemmProblem
from hpcgnn.lab.bench.problem import Problem, calls_together, seconds_of
from hpcgnn.lab.bench.sddmm_contenders import SddmmProblem
from hpcgnn.world import World

SHAPE = (64, 32, 16)
# Each contender must run on some device. These do not know the stand-in, and the worker tries them like all others.
ELSEWHERE = {"torch.mm", "torch.mm.kept", "pyg.edge_index", "compiled"}
if torch.cuda.is_available():  # Triton compiles for the GPU, whose memory it can access
    ELSEWHERE |= {"ceiling.gather", "ceiling.gather.int8"}
HERE = [contender for name, contender in DEVICE.items() if name not in ELSEWHERE and not contender.missing()]


def results(world: World) -> dict[tuple[str, str], torch.Tensor]:
    """The results of each contender in each direction, computed from the device's memory."""
    del world
    device, found = standin(), {}
    problem = Problem(matrix(), WIDTH, device=device)
    for contender in HERE:
        for direction in contender.directions:
            result = contender.prepare(problem, direction)()
            assert result.device == device.torch_device
            found[contender.name, direction] = result.cpu()
    return found


def products(world: World) -> dict[tuple[str, str, str], list[torch.Tensor] | str]:
    """The results of each contender of ``bench gemm`` and ``bench sddmm`` on the device, or the reason why it cannot run."""
    del world
    device, found = standin(), {}
    for study, problem in (
        (gemm_contenders, GemmProblem(*SHAPE, device)),
        (sddmm_contenders, SddmmProblem(matrix(), WIDTH, HEADS, device)),
    ):
        for name, contender in study.by_name(str(device.torch_device)).items():
            for direction in () if contender.missing() or name in ELSEWHERE else contender.directions:
                try:
                    results = results_of(contender, problem, direction)
                except (RuntimeError, ValueError) as error:  # the stand-in lacks an operation
                    found[study.__name__, name, direction] = str(error)
                    continue
                assert all(each.device == device.torch_device for each in results)
                found[study.__name__, name, direction] = [each.cpu() for each in results]
    return found


def timed_together(world: World) -> list[int]:
    """The numbers of calls that are timed together, on the host and on the device, and of those made for five seconds."""
    del world
    device, made = standin(), []
    assert seconds_of(device, lambda: made.append(0), 5) > 0
    together = [calls_together(*each) for each in ((CPU, 1e-3), (device, 1e-3), (device, 0.0), (device, 1.0))]
    return [*together, len(made)]


def quantized(world: World, bits: tuple[int, ...]) -> list[dict[str, Any]]:
    """The results of ``bench quantize`` on the device and on the host."""
    del world
    return [quantize.run(64, WIDTH, bits, 1, 1, lambda count: None, where) for where in (standin(), CPU)]


def exchanged(world: World, path: Path, kinds: str) -> dict[str, Any]:
    """The results of ``bench exchange`` with ranks on the host (h) and on the device (d)."""
    graph = hpcgnn.load(path, world).to(standin() if kinds[world.rank] == "d" else CPU)
    settings = {"strategy": "hybrid", "collective": "alltoallv", "gpu_mpi": "auto"}
    return exchange.run(graph, lambda count: None, width=8, bits=2, rounds=2, **settings)
