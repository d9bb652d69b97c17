"""A process that measures: ``python -m hpcgnn.lab.bench.worker PLACE``, with a :class:`hpcgnn.lab.bench.measure.Place` in JSON.
It answers each line of JSON on stdin, ``{"do": "prepare" | "run", "contender": name, "direction": ...}``, with one on stdout. Its
environment sets threads, instruction set and buffer pool."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

import msgspec
import torch

from hpcgnn.base.process import disable_malloc_trimming
from hpcgnn.devices import Device, device_of
from hpcgnn.lab.bench.measure import Place
from hpcgnn.lab.bench.problem import Call, Result, Special, calls_together, seconds_of
from hpcgnn.lab.bench.studies import Subject

# A call that is shorter than this runs once untimed before it is timed, so that its code and data are in the caches.
_LONG_SECONDS = 0.3
_ENOUGH_SECONDS = 0.05
_MOST_CALLS = 10
# From <sys/prctl.h>.
_PR_SET_THP_DISABLE = 41


class Bench:
    """The state of one process: the problem, and the products that are ready to run."""

    def __init__(self, subject: Subject, device: Device) -> None:
        self._problem, self._device = subject.of_study.problem(device, *subject.words), device
        self._contenders = subject.of_study.contenders(str(device.torch_device))
        self._direction = ""
        self._ready: dict[str, Call] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do ``request``, and return the answer. Products of one direction are dropped when another one is prepared."""
        name = request["contender"]
        if request["direction"] != self._direction:
            self._ready.clear()
            ctypes.CDLL(None).malloc_trim(0)  # otherwise remains of the last direction would fragment the heap
            self._direction = request["direction"]
        return self._prepare(name, request["direction"]) if request["do"] == "prepare" else self._run(name)

    def _prepare(self, name: str, direction: str) -> dict[str, Any]:
        contender = self._contenders[name]
        missing = contender.missing()
        if missing:
            return {"missing": missing}
        call = self._ready[name] = contender.prepare(self._problem, direction)
        result = call()  # also makes what the first call makes
        self._device.synchronize()  # an error on the device must count as this contender's
        counted = {}
        if isinstance(call, Special):
            result = result if call.finish is None else call.finish(result)
            counted = {} if call.multiply_adds is None else {"multiply_adds": call.multiply_adds}
        if not contender.tolerance:
            return {"fingerprint": None, **counted}
        error = relative_error(result, self._problem.exact(direction))
        return {"fingerprint": fingerprint(result), "relative_error": error, **counted}

    def _run(self, name: str) -> dict[str, Any]:
        call = self._ready[name]
        seconds = [seconds_of(self._device, call)]
        if seconds[0] < _LONG_SECONDS:
            calls = calls_together(self._device, seconds[0])
            seconds.clear()  # that call was the untimed one
            while not seconds or (calls * sum(seconds) < _ENOUGH_SECONDS and len(seconds) < _MOST_CALLS):
                seconds.append(seconds_of(self._device, call, calls))
        return {"seconds": seconds}


def relative_error(result: Result, exact: tuple[torch.Tensor, ...] | None) -> float | None:
    """The largest relative error of the results (root mean square of the error over that of the exact result); None if no exact
    result is known."""
    if exact is None:
        return None
    results = result if isinstance(result, tuple) else (result,)
    return max(float((one - other).norm() / other.norm()) for one, other in zip(results, exact, strict=True))


def fingerprint(result: Result) -> list[float]:
    """Two numbers for each (rows, width) result, its product with fixed random vectors and its size, by which results are
    compared."""
    if isinstance(result, tuple):
        return [number for each in result for number in fingerprint(each)]
    draw = torch.Generator().manual_seed(7)
    columns = torch.mv(result, torch.randn(result.shape[1], generator=draw).to(result.device)).cpu().double()
    rows = torch.randn(result.shape[0], generator=draw).double()
    return [float(columns @ rows), float(columns.norm())]


def main() -> None:
    """Answer requests until stdin ends."""
    place = msgspec.json.decode(sys.argv[1], type=Place)
    if place.warm and not disable_malloc_trimming():
        raise OSError("this C library does not accept the settings of mallopt")
    if not place.huge_pages:
        ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    answers = os.fdopen(os.dup(1), "w")  # stdout is for answers only, although libraries may print
    os.dup2(2, 1)
    torch.set_num_threads(place.threads)
    device = device_of(torch.device(place.device))
    device.use()
    bench = Bench(place.subject, device)
    for line in sys.stdin:
        try:
            answer = bench.answer(json.loads(line))
        except Exception as error:  # a library may raise any error; the others are still measured
            answer = {"missing": " ".join(str(error).split())[:200] or type(error).__name__}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
