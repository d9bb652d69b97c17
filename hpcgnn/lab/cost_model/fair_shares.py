"""The end times of flows that share links max-min fairly: each flow gets an equal share of the fullest link on its way.

Flows with the same way form a group, in which all flows have the same rate, so the state of a group is one number: the bytes
that each of its flows has moved. No array is larger than the number of groups, flows or links.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.base.compiled import njit

# A time step ends when so much of what moves has come to its end; what that leaves free is shared anew in the next one only.
# Steps are coarser where flows are many and each matters less.
_LEAST_SHARE, _MOST_SHARE, _FLOWS_OF_MOST = 0.02, 0.1, 200_000
# Links that are as full as this, compared with others, count as equally full. Rates stay below what links take.
_ALIKE = 1.02
_TIE = 1 + 1e-9


@dataclass(frozen=True)
class Flows:
    """Flows. groups: (flows,) int64 group of each flow. sizes: (flows,) float64 bytes, above 0. counts: (flows,) float64
    number of flows for which a row stands."""

    groups: np.ndarray
    sizes: np.ndarray
    counts: np.ndarray


@njit(cache=True, nogil=True)
def fair_rates(
    ways: np.ndarray, counts: np.ndarray, bandwidths: np.ndarray
) -> np.ndarray:  # pragma: no cover - compiled
    """(groups,) float64 bytes/s of each flow of a group, max-min fair.

    ways: (groups, links of a way) int64; a link with infinite bandwidth fills a shorter way. counts: (groups,) float64 flows.
    bandwidths: (links,) float64 bytes/s; each group needs one that is finite.
    """
    groups, length = ways.shape
    rates, best = np.zeros(groups), np.zeros(groups)
    left, load = bandwidths.copy(), np.zeros(len(bandwidths))
    waiting, num_waiting = np.arange(groups), groups
    for g in range(groups):
        for k in range(length):
            load[ways[g, k]] += counts[g]
    while num_waiting:
        least = np.full(len(left), np.inf)
        share = np.full(len(left), np.inf)
        for link in range(len(left)):
            if load[link] > 0.5:  # of whole flows: what rounding leaves of a load is none
                share[link] = max(left[link], 0.0) / load[link]
        for w in range(num_waiting):
            g = waiting[w]
            best[g] = np.inf
            for k in range(length):
                best[g] = min(best[g], share[ways[g, k]])
            for k in range(length):
                least[ways[g, k]] = min(least[ways[g, k]], best[g])
        kept = 0
        for w in range(num_waiting):
            g, is_held = waiting[w], False
            for k in range(length):
                link = ways[g, k]
                # a link is full where none of its flows is held up elsewhere: those of its flows have their rates
                is_held |= share[link] < np.inf and least[link] * _ALIKE >= share[link]
            if is_held:
                rates[g] = best[g]
                for k in range(length):
                    left[ways[g, k]] -= counts[g] * best[g]
                    load[ways[g, k]] -= counts[g]
            else:
                waiting[kept] = g
                kept += 1
        num_waiting = kept
    return rates


def ends(flows: Flows, ways: np.ndarray, bandwidths: np.ndarray) -> np.ndarray:
    """(flows,) float64 seconds until each flow has ended, of flows that all begin at 0. Arguments as for :func:`fair_rates`."""
    ended = np.zeros(len(flows.sizes))
    moved, now = np.zeros(len(ways)), 0.0
    active = np.arange(len(flows.sizes))
    while len(active):
        groups, names = _renumbered(flows.groups[active], len(ways))
        counts = flows.counts[active]
        rate = fair_rates(ways[names], np.bincount(groups, counts), bandwidths)
        left = (flows.sizes[active] - moved[names][groups]) / rate[groups]
        step = _step(left, rate[groups] * counts)
        over = left <= step
        ended[active[over]] = now + np.maximum(left[over], 0)
        moved[names] += rate * step
        now += step
        active = active[~over]
    return ended


def _renumbered(groups: np.ndarray, total: int) -> tuple[np.ndarray, np.ndarray]:
    """The remaining groups, numbered from 0, and their former numbers."""
    is_left = np.zeros(total, bool)
    is_left[groups] = True
    names = np.flatnonzero(is_left)
    place = np.cumsum(is_left) - 1
    return place[groups], names


def _step(left: np.ndarray, moving: np.ndarray) -> float:
    """Seconds until a certain share of the moving flows, and at least the first one, has ended."""
    order = np.argsort(left, kind="stable")
    gone = np.cumsum(moving[order])
    share = min(max(_LEAST_SHARE, _MOST_SHARE * len(left) / _FLOWS_OF_MOST), _MOST_SHARE)
    which = int(np.searchsorted(gone, share * gone[-1]))
    return float(left[order[min(which, len(order) - 1)]]) * _TIE
