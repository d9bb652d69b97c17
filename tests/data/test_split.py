"""Rules of splits."""

from __future__ import annotations

import numpy as np
import pytest

from hpcgnn.data.graph_file import SINGLE_LABEL
from hpcgnn.data.split import make_split, parse_split
from hpcgnn.errors import HpcgnnError


def test_no_share_is_negative() -> None:
    for text in ("random:0.6,-0.2,0.2", "random:-0.5,1,0.5", "per-class:20,-1"):
        with pytest.raises(HpcgnnError, match="is not understood"):
            parse_split(text)


def test_a_node_stays_where_it_is_when_other_nodes_lose_their_labels() -> None:
    labels, rule = np.zeros(100, np.int64), parse_split("per-class:20,30,7")

    def split() -> dict[str, np.ndarray]:
        return make_split(rule, lambda first, last: labels[first:last], labels.size, SINGLE_LABEL, "a graph")

    before = split()
    labels[np.flatnonzero(before["test_mask"])[:40]] = -1
    after = split()
    assert after["test_mask"].sum() == 10
    assert all(np.array_equal(before[name], after[name]) for name in ("train_mask", "val_mask"))
