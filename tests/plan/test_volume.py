"""Numbers of rows and bytes of a plan, compared with a dense table of all pairs of parts."""

from __future__ import annotations

import numpy as np

from hpcgnn.plan.volume import PairRows, describe


def test_totals_and_maxima_are_those_of_a_dense_table():
    post, pre = np.random.default_rng(0).integers(1, 9, (2, 4, 4))
    for kind in (post, pre):
        np.fill_diagonal(kind, 0)
        kind[:, 3] = 0  # part 3 receives nothing
    sender, receiver = np.nonzero(post)
    rows = post + pre
    assert describe(PairRows(sender, receiver, post[sender, receiver], pre[sender, receiver]), 4, bytes_per_row=12) == {
        "pairs": 9,
        "rows": rows.sum(),
        "post_rows": post.sum(),
        "pre_rows": pre.sum(),
        "bytes": 12 * rows.sum(),
        "max_rows_sent": rows.sum(axis=1).max(),
        "max_rows_received": rows.sum(axis=0).max(),
        "max_rows_pair": rows.max(),
    }


def test_one_part_sends_nothing():
    nothing = np.empty(0, np.int64)
    assert set(describe(PairRows(nothing, nothing, nothing, nothing), 1, bytes_per_row=12).values()) == {0}
