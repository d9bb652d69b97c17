"""Damaged files: the definition of a defect, the second parsers of text, and mutations that follow from their numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest


def outcome(**changes):
    from campaign.mutations.fork import Outcome

    values = {"exit": 0, "stderr": "", "mutation": {"what": "", "expects": "refuse", "touches": "x"}, "digest": "same"}
    return Outcome(**values | changes)


@dataclass
class Case:
    target: str = "run/g.h5"
    reader: object = field(
        default_factory=lambda: SimpleNamespace(reads=lambda touched: touched != "unread", ranks=(), reads_files=True)
    )


MTX = "%%MatrixMarket matrix coordinate"
SENTENCE = "hpcgnn: error: run/g.h5 is damaged\n"
EXPECTS = {name: {"what": "", "expects": name, "touches": "x"} for name in ("refuse", "same", "free", "other")}
NAMED = {"what": "", "expects": "free", "touches": "", "names": ["--epochs", "epochs"]}


@pytest.mark.parametrize(
    ("changes", "defects"),
    [
        ({"exit": 1, "stderr": SENTENCE}, set()),
        ({"exit": 2, "stderr": "Usage: hpcgnn\nTry --help\n\nError: g.h5 has no such setting\n"}, set()),
        ({"exit": 1, "stderr": "hpcgnn: error: it is damaged\n"}, {"sentence"}),
        ({"exit": 1, "stderr": "hpcgnn: error: it is damaged\n", "mutation": EXPECTS["free"]}, set()),
        ({"exit": 1, "stderr": "a warning of g.h5\n" + SENTENCE}, {"sentence"}),
        ({"exit": 1, "stderr": ""}, {"sentence"}),
        ({"exit": 1, "stderr": "Traceback (most recent call last):\nKeyError: 'g.h5'\n"}, {"traceback"}),
        ({"exit": -11}, {"signal"}),
        ({"exit": None}, {"hang"}),
        ({"exit": 99, "stderr": "harness"}, {"harness"}),
        ({"exit": 130, "stderr": SENTENCE}, {"exit"}),
        ({"exit": 0}, {"accepted"}),
        ({"exit": 0, "mutation": EXPECTS["refuse"] | {"touches": "unread"}}, set()),
        ({"exit": 0, "mutation": EXPECTS["same"]}, set()),
        ({"exit": 0, "mutation": EXPECTS["same"], "digest": "other"}, {"accepted"}),
        ({"exit": 0, "mutation": EXPECTS["free"], "digest": "other"}, set()),
        ({"exit": 0, "mutation": EXPECTS["other"], "digest": "other"}, set()),
        ({"exit": 0, "mutation": EXPECTS["other"], "digest": "same"}, {"accepted"}),
        ({"exit": 1, "stderr": SENTENCE, "resident_bytes": 100 << 20}, {"memory"}),
        ({"exit": 1, "stderr": SENTENCE, "resident_bytes": 100 << 20, "file_bytes": 40 << 20}, set()),
        ({"exit": 1, "stderr": SENTENCE, "address_bytes": 1 << 40}, {"memory"}),
        ({"exit": 1, "stderr": SENTENCE, "left_behind": [".g.h5.1.tmp"]}, {"leftover"}),
        ({"exit": 1, "stderr": SENTENCE, "left_behind": ["out.h5"]}, {"leftover"}),
        ({"exit": 1, "stderr": SENTENCE, "code_ran": True}, {"code"}),
        ({"exit": 1, "stderr": SENTENCE, "mutation": NAMED}, {"sentence"}),
        ({"exit": 2, "stderr": "Error: no such --epochs\n", "mutation": NAMED}, set()),
        ({"exit": 0, "mutation": NAMED, "digest": "other"}, set()),
        ({"exit": 1, "stderr": SENTENCE, "ranks": [1, 1]}, set()),
        ({"exit": 1, "stderr": SENTENCE, "ranks": [1, 0]}, {"ranks"}),
    ],
)
def test_what_a_defect_is(changes, defects):
    from campaign.mutations.verdicts import defects as found

    assert set(found(Case(), outcome(**changes), outcome())) == defects


@pytest.mark.parametrize(
    ("oracle", "text", "edges"),
    [
        ("edge_list", "# c\n0 1\n\n2 1\n", [(0, 1, 1), (2, 1, 1)]),
        ("edge_list", "0,1,0.5\n1,0,2\n", [(0, 1, 0.5), (1, 0, 2)]),
        ("edge_list", "0 1 nan\n", None),
        ("edge_list", "0 1\n1 x\n", None),
        ("edge_list", "0 70000\n", None),
        ("metis", "3 1\n2\n1\n\n", [(0, 1, 1), (1, 0, 1)]),
        ("metis", "2 1 001\n2 5\n1 5\n", [(0, 1, 5), (1, 0, 5)]),
        ("metis", "2 1 001\n2 5\n1 6\n", None),
        ("metis", "2 1\n3\n1\n", None),
        ("matrix_market", f"{MTX} real symmetric\n2 2 2\n1 1 3\n2 1 4\n", [(0, 0, 3), (1, 0, 4), (0, 1, 4)]),
        ("matrix_market", f"{MTX} pattern general\n2 2 2\n1 1\n", None),
    ],
)  # fmt: skip
def test_second_readers_of_text(tmp_path, oracle, text, edges):
    from campaign.mutations import oracles
    from campaign.mutations.digests import of_edges, of_graph_file
    from hpcgnn import HpcgnnError
    from hpcgnn.sources.convert import convert

    path = tmp_path / "g"
    path.write_text(text)
    kind = {"edge_list": "edgelist", "metis": "metis", "matrix_market": "mtx"}[oracle]
    told = getattr(oracles, oracle)(text.encode())
    if edges is None:
        assert told is None
        with pytest.raises(HpcgnnError):
            convert(f"{kind}:{path}", tmp_path / "g.h5")
        return
    nodes = 3 if text.startswith(("3", "#")) else 2
    assert told == of_edges(nodes, edges, weighted=edges[0][2] != 1 or oracle == "matrix_market")
    convert(f"{kind}:{path}", tmp_path / "g.h5")
    assert of_graph_file(tmp_path / "g.h5") == told


def test_mutations_follow_from_their_numbers(tmp_path):
    from campaign.mutations import oracles
    from campaign.mutations.text import of_text

    path = tmp_path / "edges.txt"
    texts = []
    for _ in range(2):
        found = []
        for number in range(50):
            path.write_text("".join(f"{s} {s + 1}\n" for s in range(20)))
            mutate = of_text(oracles.edge_list)[number % 10]
            mutation = mutate(path, np.random.default_rng([3, number]))
            found.append((mutation, path.read_bytes()))
        texts.append(found)
    assert texts[0] == texts[1]
    assert len({content for _, content in texts[0]}) > 45
