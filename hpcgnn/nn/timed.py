"""Measurement of the speed of an arithmetic on a device: the least times of several ways to compute the same, taken in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from hpcgnn.devices import Device
from hpcgnn.kernels import dense

_LEAST_ROUNDS = 3
_REPEATS = 1.1  # the two least times of a call differ by a smaller factor, unless other work disturbs the measurement


def least_seconds(
    calls: Mapping[str, Callable[[], object]],
    device: Device,
    rounds: int,
    is_clear: Callable[[dict[str, float]], bool] = lambda _: False,
) -> dict[str, float]:
    """The least seconds of each call, in at most ``rounds`` rounds after an uncounted one that also fills caches.

    is_clear: returns whether the seconds so far decide the question, so that the remaining rounds can be skipped. It is called
    from the third round on, once the two least times of each call are about equal: on a busy machine, they are not.
    """
    least = dict.fromkeys(calls, float("inf"))
    second = dict(least)
    for turn in range(1 + rounds):
        for name, call in calls.items():
            started = device.mark()
            call()
            seconds = device.seconds_between(started, device.mark())
            if turn > 0:
                least[name], second[name] = sorted((least[name], second[name], seconds))[:2]
        repeats = all(second[name] <= _REPEATS * least[name] for name in calls)
        if turn >= _LEAST_ROUNDS and repeats and is_clear(least):
            break
    return least


def multiply_and_back(x: torch.Tensor, weight: torch.Tensor, backend: str, arithmetic: str = "float32") -> None:
    """A product (n, F) x (F, F) and its two gradients, by the kernels of an arithmetic."""
    y = dense.product(x, weight, backend=backend, compute=arithmetic)
    dense.product(y, weight.T, backend=backend, compute=arithmetic)
    dense.weight_gradient(x, y, backend=backend, compute=arithmetic)
