"""Messages from a device's memory, in pieces through the host or directly: the same bytes for all mixtures of ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ranks import transports

from hpcgnn.devices import CPU
from hpcgnn.world.transport import Pieces

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="a GPU is tested in tests/gpu, and the stand-in goes with none"
)


@pytest.fixture(params=[2, 3])
def ranks(request, device_ranks):
    return device_ranks(request.param)


@pytest.mark.mpi
class TestDevices:
    @pytest.mark.parametrize(("piece_bytes", "mixed"), [(100, True), (1024, False), (transports.LARGE, True)])
    def test_rows_come_through_memory_of_the_host(self, ranks, piece_bytes, mixed):
        ranks.run(transports.staged, piece_bytes, mixed)

    def test_memory_of_the_host_is_made_once(self, ranks):
        ranks.run(transports.host_memory)

    def test_mpi_is_given_the_devices_memory_where_it_takes_it(self, ranks):
        ranks.run(transports.as_they_are)

    def test_a_library_that_takes_none_is_refused_where_it_must(self, ranks):
        ranks.run(transports.refused)

    def test_what_a_library_says_is_proved(self, ranks):
        ranks.run(transports.comes_wrong)


def test_shares_of_segments_are_all_rows_once():
    counts = np.array([0, 7, 1, 20, 2])
    for pieces in (1, 2, 3, 30):
        shares = Pieces.cut(counts, pieces, CPU)
        assert shares.counts.sum(0).tolist() == counts.tolist()
        assert np.diff(shares.spans()).sum() == counts.sum()
        if pieces > 1:
            assert sorted(shares.order.tolist()) == list(range(30))
            segments = np.repeat(np.arange(5), counts)
            for (first, last), of_piece in zip(shares.spans(), shares.counts, strict=True):
                found = torch.from_numpy(segments)[shares.order[first:last]]
                assert torch.bincount(found, minlength=5).tolist() == of_piece.tolist()
                assert shares.order[first:last].diff().gt(0).all()
