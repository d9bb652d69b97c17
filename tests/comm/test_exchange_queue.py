"""The queue of exchanges whose bytes become ready later: they start in the order of the queue, whichever is ready first."""

from __future__ import annotations

from types import SimpleNamespace

from hpcgnn.comm.exchange_queue import ExchangeQueue, Piece


def test_an_exchange_waits_for_those_before_it_in_the_queue():
    ready, started = set(), []

    def transfer(name):
        piece = Piece(SimpleNamespace(is_over=lambda: name in ready), None, None)
        return SimpleNamespace(what=name, neighbours=None, pieces=[piece], land=lambda: False)

    def start(send, received, what, neighbours):
        started.append(what)
        return SimpleNamespace(seconds=0.0, test=lambda: False)

    queue = ExchangeQueue(start)
    for name in ("first", "second", "third"):
        queue.put(transfer(name))
    for name, expected in (("second", []), ("first", ["first", "second"]), ("third", ["first", "second", "third"])):
        ready.add(name)
        queue.advance()
        assert started == expected
