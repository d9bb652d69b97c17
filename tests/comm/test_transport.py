"""Messages from a device's memory, in pieces through the host or directly: the same bytes for all mixtures of ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ranks import transports

from hpcgnn.comm.transport import Shares
from hpcgnn.devices import CPU

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="a GPU is tested in tests/gpu, and the stand-in goes with none"
)
LARGE = 1 << 20


@pytest.fixture(params=[2, 3])
def ranks(request, device_ranks):
    return device_ranks(request.param)


@pytest.mark.mpi
class TestDevices:
    @pytest.mark.parametrize("mixed", [False, True], ids=["all", "some"])
    @pytest.mark.parametrize("piece_bytes", [100, 1024, LARGE])
    def test_rows_come_through_memory_of_the_host(self, ranks, piece_bytes, mixed):
        for rank, found in enumerate(ranks.run(transports.staged, piece_bytes, mixed)):
            assert found["right"] == [True] * 12
            assert found["stages"] == (rank > 0 or not mixed)
            none, few, many = found["pieces"]
            assert none == 1
            assert (few, many) == (1, 1) if piece_bytes == LARGE else 1 <= few < many

    def test_memory_of_the_host_is_made_once(self, ranks):
        for found in ranks.run(transports.host_memory):
            assert found == found[:1] * 5

    def test_mpi_is_given_the_devices_memory_where_it_takes_it(self, ranks):
        for found in ranks.run(transports.as_they_are):
            assert found == {"right": [True] * 3, "stages": [False, False, True]}

    def test_a_library_that_takes_none_is_refused_where_it_must(self, ranks):
        said = ranks.run(transports.refused)
        assert said == said[:1] * len(said)
        assert said[0].startswith("--gpu-mpi on needs an MPI library that takes memory of standin:0, but ")

    def test_what_a_library_says_is_proved(self, ranks):
        for found in ranks.run(transports.comes_wrong):
            assert found["stages"]
            assert found["right"]
            assert "does not move memory of standin:0 correctly" in found["said"]


def test_shares_of_segments_are_all_rows_once():
    counts = np.array([0, 7, 1, 20, 2])
    for pieces in (1, 2, 3, 30):
        shares = Shares.cut(counts, pieces, CPU)
        assert shares.counts.sum(0).tolist() == counts.tolist()
        assert np.diff(shares.spans()).sum() == counts.sum()
        if pieces > 1:
            assert sorted(shares.order.tolist()) == list(range(30))
            segments = np.repeat(np.arange(5), counts)
            for (first, last), of_piece in zip(shares.spans(), shares.counts, strict=True):
                found = torch.from_numpy(segments)[shares.order[first:last]]
                assert torch.bincount(found, minlength=5).tolist() == of_piece.tolist()
                assert shares.order[first:last].diff().gt(0).all()
