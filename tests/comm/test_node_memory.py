"""Memory that the ranks of a node share."""

from __future__ import annotations

import pytest
from ranks import node_aware

pytestmark = pytest.mark.mpi


def test_what_a_rank_has_written_is_there_after_a_meeting(mpi_ranks):
    size = 3
    wanted = [size * size * turn + sum(range(size)) for turn in range(200)]
    assert mpi_ranks(size).run(node_aware.handed_around) == [wanted] * size


def test_a_rank_that_does_not_come_is_waited_for_no_longer_than_the_timeout(mpi_ranks):
    said, nothing = mpi_ranks(2).run(node_aware.meet_alone)
    assert "waited 0 s for its rank 1: a peer or a link has stopped" in said
    assert nothing == ""
