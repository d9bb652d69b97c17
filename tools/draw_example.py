"""Draw the example of docs/explanation/algebra.md: a graph of 8 nodes on 2 ranks, its plans, and one aggregation in numbers.

    python tools/draw_example.py

Everything is taken from the package itself, which runs on two threads: plans from the planner, rows from messages, results from
an aggregator. The pictures go to docs/explanation/example-*.svg, and tables and matrices to the page, between markers such as
``<!-- made: step -->`` and ``<!-- end -->``. tests/project/test_drawn_example.py holds the files to be what this program makes.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data

import hpcgnn
from hpcgnn.exchange import Messages
from hpcgnn.kernels import spmm
from hpcgnn.nn import Aggregator, make_aggregator
from hpcgnn.nn.aggregators import make_relation_aggregator
from hpcgnn.partition import PartitionOptions, partition
from hpcgnn.plan import STRATEGIES, AggregationPlan, SparseMatrix
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads, one_rank

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "explanation"
PAGE = FOLDER / "algebra.md"
RANKS, NODES = 2, 8
INSIDE = [(1, 0), (2, 1), (3, 2), (2, 3), (5, 4), (6, 5), (7, 6)]
CUT = [(0, 4), (0, 5), (0, 6), (0, 7), (1, 7), (2, 7), (4, 0)]
OF_TYPE_B = [(0, 6), (0, 7)]  # the other edges are of type a
TYPES = [int(edge in OF_TYPE_B) for edge in INSIDE + CUT]
TYPED = "relations"
VALUES = [2**node for node in range(NODES)]  # a sum of these tells which nodes are in it


# -- the example, computed by the package -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Half:
    """One rank's plan, and its numbers in one aggregation: n owned nodes, p rows of results (n, without types of edges), s rows
    sent, r rows received.

    nodes, ends: (n,) and (p,) original ids of nodes and of the results' nodes. types: (p,) types of the results' edges, if there
    are any. x, dx: (n,) features, and their gradient where that of a result is the value in :data:`VALUES` of its node. local,
    added, z: (p,) L x, R times the received rows, and the sums over in-edges. mean: (n,) the mean over in-edges, without types.
    sent, received: (s,) and (r,) rows of one column, forward; back_sent, back_received: (r,) and (s,) those of the backward pass.
    """

    plan: AggregationPlan[SparseMatrix]
    nodes: list[int]
    ends: list[int]
    types: list[int]
    x: np.ndarray
    local: np.ndarray
    sent: np.ndarray
    received: np.ndarray
    added: np.ndarray
    z: np.ndarray
    mean: np.ndarray
    back_sent: np.ndarray
    back_received: np.ndarray
    dx: np.ndarray

    @property
    def results(self) -> list[str]:
        """(p,) names of the results: the node, and the type of its edges if there are types."""
        if not self.types:
            return list(map(str, self.ends))
        return [f"{end} {'ab'[kind]}" for end, kind in zip(self.ends, self.types, strict=True)]


def half(world: World, path: Path, strategy: str) -> Half:
    """Plan and aggregate on one rank. Collective."""
    graph = hpcgnn.load(path, world)
    if graph.meta.num_edge_types:
        pairs = graph.relation_rows()
        aggregator, _ = make_relation_aggregator(graph, strategy, kind="sum", messages=Messages(world))
        plan, ends, types = graph.built_plan(strategy, pairs.rows), pairs.node, pairs.relation.tolist()
    else:
        aggregator, plan = make_aggregator(graph, "sum", strategy), graph.built_plan(strategy)
        ends, types = np.arange(graph.num_nodes), []
    for ours, used in ((plan.local, aggregator.plan.local), (plan.send, aggregator.plan.send)):
        assert np.array_equal(ours.indices, used.indices.numpy()), "the aggregator follows another plan"
    x = torch.as_tensor(graph.x)
    sent, received, z = _step(aggregator, x)
    of_ends = graph.original_ids[torch.from_numpy(ends)]
    values = torch.tensor(VALUES, dtype=torch.float32)[of_ends][:, None]
    back_sent, back_received, dx = _step(aggregator.reverse, values)
    leaf = x.clone().requires_grad_()
    aggregator(leaf).backward(values)
    assert leaf.grad is not None
    assert np.array_equal(leaf.grad.numpy()[:, 0], dx), "autograd does not take the reversed aggregator"
    return Half(
        plan=plan,
        nodes=graph.original_ids.tolist(),
        ends=of_ends.tolist(),
        types=types,
        x=x.numpy()[:, 0],
        local=spmm(aggregator.plan.local, x).numpy()[:, 0],
        sent=sent,
        received=received,
        added=spmm(aggregator.plan.receive, torch.from_numpy(received)[:, None]).numpy()[:, 0],
        z=z,
        mean=np.empty(0) if types else make_aggregator(graph, "mean", strategy)(x).numpy()[:, 0],
        back_sent=back_sent,
        back_received=back_received,
        dx=dx,
    )


def _step(aggregator: Aggregator, x: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows sent, the rows received, and the result of an aggregation, one column of each."""
    own, message = aggregator.start_step(x)
    sent = message.sent.clone()
    z = aggregator.finish_step(own, message)
    return _values(sent), _values(message.received.clone()), z.numpy()[:, 0]


def _values(wire: torch.Tensor) -> np.ndarray:
    return wire.view(torch.float32).numpy().reshape(-1)


@dataclass(frozen=True)
class Row:
    """A row that travels. letter: its name. sources: nodes that are added up in it. destinations: nodes to which it is
    added, with the types of their edges if there are any."""

    letter: str
    sender: int
    is_post: bool
    sources: list[int]
    destinations: list[str]

    @property
    def kind(self) -> str:
        """``post`` or ``pre``."""
        return "post" if self.is_post else "pre"

    @property
    def sum(self) -> str:
        """The row in symbols."""
        return " + ".join(f"x{chr(ord('₀') + node)}" for node in self.sources)


@dataclass(frozen=True)
class Example:
    """The example under one strategy, on all ranks. strategy: its name, or another title."""

    strategy: str
    halves: list[Half]

    @cached_property
    def rows(self) -> list[Row]:
        """All rows that travel: those of rank 0, then those of rank 1."""
        found: list[Row] = []
        for sender, mine in enumerate(self.halves):
            theirs, receive = self.halves[1 - sender].results, self.halves[1 - sender].plan.receive
            ends = np.repeat(np.arange(receive.num_rows), np.diff(receive.indptr))
            for number, is_post in enumerate(mine.plan.send_to.is_post().tolist()):
                sources = [mine.nodes[k] for k in _entries(mine.plan.send, number)]
                destinations = [theirs[k] for k in ends[receive.indices == number]]
                found.append(Row("abcdefgh"[len(found)], sender, is_post, sources, destinations))
        return found

    def rows_of(self, sender: int) -> list[Row]:
        """The rows that a rank sends."""
        return [row for row in self.rows if row.sender == sender]

    def gathered(self, name: str) -> list[float]:
        """The values of an attribute of all halves."""
        return list(chain.from_iterable(np.asarray(getattr(each, name)).tolist() for each in self.halves))


def _entries(matrix: SparseMatrix, row: int) -> list[int]:
    return matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]].tolist()


def examples() -> dict[str, Example]:
    """The example under each strategy, and with types of edges under ``hybrid``: of all edges, and of each type by itself."""
    plain, edges = Data(), list(zip(INSIDE + CUT, TYPES, strict=True))
    made = {each: _example(plain, each) for each in STRATEGIES}
    made[TYPED] = _example(Data(edge_type=torch.tensor(TYPES)), "hybrid")
    for number, name in enumerate("ab"):
        made[f"type {name}"] = _example(Data(), "hybrid", [edge for edge, kind in edges if kind == number])
    for name in (*STRATEGIES, TYPED):
        assert made[name].gathered("z") == one_process(made[name]), "the ranks add up something else than one process"
        assert made[name].gathered("dx") == one_process(transposed=True)
    return made


def _example(data: Data, strategy: str, edges: Sequence[tuple[int, int]] = tuple(INSIDE + CUT)) -> Example:
    data.x, data.edge_index = torch.tensor(VALUES, dtype=torch.float32)[:, None], torch.tensor(edges).T
    with tempfile.TemporaryDirectory() as name:
        whole, parts = Path(name) / "graph.h5", Path(name) / "parts.h5"
        hpcgnn.from_pyg(data, whole)
        partition(one_rank(), whole, parts, PartitionOptions(RANKS, "block", plan="none", jobs=1))
        return Example(strategy, on_threads(RANKS, lambda world: half(world, parts, strategy)))


def one_process(like: Example | None = None, *, transposed: bool = False) -> list[float]:
    """The sums over in-edges by numpy alone, in the order of the results of ``like``, or, ``transposed``, (8,) those over
    out-edges."""
    if like is not None and like.gathered("types"):
        rows = dict.fromkeys(zip(like.gathered("types"), like.gathered("ends"), strict=True), 0.0)
        for (source, destination), kind in zip(INSIDE + CUT, TYPES, strict=True):
            rows[kind, destination] += VALUES[source]
        return list(rows.values())
    sources, destinations = np.array(INSIDE + CUT).T[:: -1 if transposed else 1]
    z = np.zeros(NODES)
    np.add.at(z, destinations, np.array(VALUES, float)[sources])
    return z.tolist()


# -- text for the page ------------------------------------------------------------------------------------------------


def texts(made: dict[str, Example]) -> dict[str, str]:
    """The texts between the markers of the page, by name."""
    hybrid = made["hybrid"]
    return {
        "rows": _rows_table({each: made[each] for each in STRATEGIES}),
        "local": _fenced(_local(hybrid)),
        **{name: _fenced(_matrices(made[name])) for name in (*STRATEGIES, TYPED)},
        "rows by type": _rows_table({name: made[name] for name in ("type a", "type b", TYPED)}, "edges"),
        "step by type": _typed_step_table(made[TYPED]),
        "messages": _messages_table(hybrid),
        "step": _step_table(hybrid),
        "backward": _backward_table(hybrid),
        "blocks": _blocks_table(hybrid),
    }


def _table(head: Sequence[str], body: Sequence[Sequence[object]], left: int = 1) -> str:
    rule = ["---"] * left + ["--:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in (head, rule, *body))


def _fenced(lines: list[str]) -> str:
    return "\n".join(["```text", *(line.rstrip() for line in lines), "```"])


def _number(value: float) -> str:
    return f"{value:.4g}"


def _rows_table(made: dict[str, Example], head: str = "strategy") -> str:
    return _table(
        [head, "rows, rank 0 → 1", "rows, rank 1 → 0", "all rows"],
        [
            [
                "all" if strategy == TYPED else strategy,
                *(len(example.rows_of(rank)) for rank in range(RANKS)),
                len(example.rows),
            ]
            for strategy, example in made.items()
        ],
    )


def _block(title: str, columns: Sequence[object], rows: list[tuple[str, list[int]]]) -> list[str]:
    """A matrix of zeros and ones, with names of its columns, and of its rows with the columns that are 1."""
    lines = [f"{title:<9} │ " + " ".join(map(str, columns))]
    for name, ones in rows:
        lines.append(f" {name:<8} │ " + " ".join("1" if k in ones else "." for k in range(len(columns))))
    return lines


def _beside(left: list[str], right: list[str]) -> list[str]:
    height, width = max(len(left), len(right)), max(map(len, left)) + 3
    left, right = (each + [""] * (height - len(each)) for each in (left, right))
    return [f"{a:<{width}}{b}" for a, b in zip(left, right, strict=True)]


def _local(example: Example) -> list[str]:
    blocks = []
    for rank, each in enumerate(example.halves):
        rows = [(name, _entries(each.plan.local, k)) for k, name in enumerate(each.results)]
        blocks.append(_block(f"L, rank {rank}", each.nodes, rows))
    return _beside(*blocks)


def _matrices(example: Example) -> list[str]:
    lines: list[str] = []
    for sender, mine in enumerate(example.halves):
        receiver, theirs = 1 - sender, example.halves[1 - sender]
        rows = example.rows_of(sender)
        send = [(f"{row.letter} {row.kind}", _entries(mine.plan.send, k)) for k, row in enumerate(rows)]
        receive = [(name, _entries(theirs.plan.receive, k)) for k, name in enumerate(theirs.results)]
        lines += (
            ["", f"rank {sender} sends, rank {receiver} receives"]
            if sender
            else [f"rank {sender} sends, rank {receiver} receives"]
        )
        lines += _beside(
            _block(f"S, rank {sender}", mine.nodes, send),
            _block(f"R, rank {receiver}", [row.letter for row in rows], receive),
        )
    return lines


def _messages_table(example: Example) -> str:
    return _table(
        ["row", "kind", "from", "to", "in symbols", "sent", "received"],
        [
            [
                row.letter,
                row.kind,
                f"rank {row.sender}",
                f"rank {1 - row.sender}",
                row.sum,
                _number(sent),
                _number(came),
            ]
            for row, sent, came in zip(
                example.rows,
                chain(*(each.sent for each in example.halves)),
                chain(*(example.halves[1 - rank].received for rank in range(RANKS))),
                strict=True,
            )
        ],
        left=5,
    )


def _step_table(example: Example) -> str:
    head = ["node", "rank", "x", "L x", "R · received", "z = L x + R · received", "one process", "mean: Dl z"]
    degrees = np.bincount([destination for _, destination in INSIDE + CUT], minlength=NODES)
    body = []
    columns = map(example.gathered, ("x", "local", "added", "z", "mean"))
    for node, (x, local, added, z, mean, alone) in enumerate(zip(*columns, one_process(), strict=True)):
        rank = next(rank for rank, each in enumerate(example.halves) if node in each.nodes)
        numbers = [*map(_number, (x, local, added, z, alone)), f"{_number(z)} / {degrees[node]} = {_number(mean)}"]
        body.append([node, rank, *numbers])
    return _table(head, body)


def _typed_step_table(example: Example) -> str:
    head = ["row of z", "rank", "L x", "R · received", "z = L x + R · received", "one process"]
    names, ranks = zip(*((name, k) for k, each in enumerate(example.halves) for name in each.results), strict=True)
    columns = (map(_number, each) for each in (*map(example.gathered, ("local", "added", "z")), one_process(example)))
    return _table(head, list(zip(names, ranks, *columns, strict=True)))


def _backward_table(example: Example) -> str:
    sent = chain(*(example.halves[1 - rank].back_sent for rank in range(RANKS)))
    came = chain(*(each.back_received for each in example.halves))
    body: list[Sequence[object]] = []
    for row, value, arrived in zip(example.rows, sent, came, strict=True):
        symbols = " + ".join(f"dz{chr(ord('₀') + int(node))}" for node in row.destinations)
        to = ", ".join(map(str, row.sources))
        body.append(
            [row.letter, f"rank {1 - row.sender}", f"rank {row.sender}", symbols, _number(value), _number(arrived), to]
        )
    return _table(["row", "from", "to", "in symbols", "sent", "received", "added to dx of node"], body, left=4)


def _blocks_table(example: Example) -> str:
    """Nodes by whether their row of R and their column of S have entries."""
    found: dict[tuple[bool, bool], list[int]] = {(a, b): [] for a in (False, True) for b in (False, True)}
    for each in example.halves:
        receives, sends = (
            np.diff(each.plan.receive.indptr) > 0,
            np.isin(np.arange(len(each.nodes)), each.plan.send.indices),
        )
        for node, key in zip(each.nodes, zip(receives.tolist(), sends.tolist(), strict=True), strict=True):
            found[key].append(node)

    def told(key: tuple[bool, bool]) -> str:
        return ", ".join(map(str, found[key])) or "none"

    return _table(
        ["", "its column of S is empty", "its column of S has entries"],
        [
            ["its row of R is empty", told((False, False)), told((False, True))],
            ["its row of R has entries", told((True, False)), told((True, True))],
        ],
        left=3,
    )


# -- pictures ---------------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _RADIUS = 480, 470, 19
_NODE_X, _NODE_Y, _STEP = (70, 410), 136, 74
_ROW_X, _ROW_Y, _ROW_WIDTH, _ROW_HEIGHT = 240, 84, 130, 30  # y: of rows from rank 1 to rank 0
_EDGE, _OF_B, _CARRY, _INK, _QUIET = "#c2410c", "#6d28d9", "#6b7280", "#1f2937", "#4b5563"
_PANELS = (("#e6f0fb", "#8fb4dc"), ("#e5f5ee", "#86c1a6"))
_Point = tuple[float, float]


def pictures(made: dict[str, Example]) -> dict[str, str]:
    """The pictures' SVG, by name."""
    plans = {strategy: _plan_picture(made[strategy], f"{strategy}: ") for strategy in STRATEGIES}
    return {"graph": _graph_picture()} | plans | {TYPED: _plan_picture(made[TYPED], "two types of edges: ")}


def _node_at(node: int) -> _Point:
    rank, place = divmod(node, NODES // RANKS)
    return _NODE_X[rank], _NODE_Y + place * _STEP


def _graph_picture() -> str:
    there = [(source, destination) for source, destination in CUT if source < destination]
    edges = [_line(_node_at(a), _node_at(b), "cut", ends=(_RADIUS, _RADIUS + 2)) for a, b in there]
    for source, destination in sorted(set(CUT) - set(there)):  # arched, beside the edge in the other direction
        (right, above), (left, _) = _node_at(source), _node_at(destination)
        arch = (
            f"M{right - 15},{above - 14} C{right - 90},{above - 62} {left + 90},{above - 62} {left + 16},{above - 15}"
        )
        edges.append(f'<path d="{arch}" class="cut" marker-end="url(#tip-cut)"/>')
    about = f"A directed graph of 8 nodes on 2 ranks; {len(CUT)} of its {len(CUT + INSIDE)} edges run between the ranks"
    return _svg(
        f"the graph: {len(CUT)} cut edges",
        about,
        [*_panels(), *edges, *_nodes()],
        "an edge inside a part",
        ("a cut edge",),
        carried=False,
    )


def _plan_picture(example: Example, title: str) -> str:
    parts = [*_panels()]
    for row in example.rows:
        parts += _row_lines(row, example)
    parts += [*_nodes(), *chain(*(_row_box(row) for row in example.rows))]
    there, back = (len(example.rows_of(rank)) for rank in range(RANKS))
    title = f"{title}{there + back} rows travel"
    about = f"{title}. " + ". ".join(
        f"Row {row.letter}, {row.kind}: {row.sum} from rank {row.sender} to nodes {', '.join(row.destinations)}"
        for row in example.rows
    )
    edges = ("a cut edge of type a", "a cut edge of type b") if example.gathered("types") else ("a cut edge",)
    return _svg(title, about, parts, "only carries a row", edges, carried=True)


def _row_at(row: Row) -> _Point:
    """Rows of rank 0 are beside their source, or their destination; those of rank 1 above all others."""
    if row.sender:
        return _ROW_X, _ROW_Y
    return _ROW_X, _node_at(row.sources[0] if row.is_post else _end(row.destinations[0])[0])[1]


def _end(destination: str) -> tuple[int, str]:
    """The node, and the class of lines that end there: edges of type b are drawn in another colour."""
    node, _, kind = destination.partition(" ")
    return int(node), "cut b" if kind == "b" else "cut"


def _row_lines(row: Row, example: Example) -> Iterator[str]:
    """An entry of S is a line from a node to the row, an entry of R one from the row to a node; edges are in one of both."""
    x, y = _row_at(row)
    near = -_ROW_WIDTH / 2 if row.sender == 0 else _ROW_WIDTH / 2
    for number, node in enumerate(row.sources):
        place = y + 8 * (number - (len(row.sources) - 1) / 2)
        kind = "carry" if row.is_post else _end(row.destinations[0])[1]
        yield _line(_node_at(node), (x + near, place), kind, ends=(_RADIUS, 2))
    for number, (node, kind) in enumerate(map(_end, row.destinations)):
        place = y + 8 * (number - (len(row.destinations) - 1) / 2)
        yield _line((x - near, place), _node_at(node), kind if row.is_post else "carry", ends=(0, _RADIUS + 2))


def _row_box(row: Row) -> Iterator[str]:
    x, y = _row_at(row)
    left, top = x - _ROW_WIDTH // 2, y - _ROW_HEIGHT // 2
    kind = "row" if row.is_post else "row sum"
    arrow = "→" if row.sender == 0 else "←"
    yield f'<rect x="{left}" y="{top}" width="{_ROW_WIDTH}" height="{_ROW_HEIGHT}" rx="8" class="{kind}"/>'
    yield f'<text x="{x}" y="{y + 5}" class="name">{row.sum}</text>'
    yield f'<text x="{x}" y="{top - 5}" class="small">{row.letter} · {row.kind} {arrow}</text>'


def _line(start: _Point, end: _Point, kind: str, *, ends: tuple[float, float]) -> str:
    """A straight line of the classes ``kind``, shortened by ``ends`` at both ends."""
    (x, y), (u, v) = start, end
    length = ((u - x) ** 2 + (v - y) ** 2) ** 0.5
    cos, sin = (u - x) / length, (v - y) / length
    x, y, u, v = x + ends[0] * cos, y + ends[0] * sin, u - ends[1] * cos, v - ends[1] * sin
    return f'<path d="M{x:.1f},{y:.1f} L{u:.1f},{v:.1f}" class="{kind}" marker-end="url(#tip-{kind.split()[-1]})"/>'


def _panels() -> Iterator[str]:
    for rank, (fill, stroke) in enumerate(_PANELS):
        x = _NODE_X[rank] - 50
        yield f'<rect x="{x}" y="44" width="100" height="356" rx="12" fill="{fill}" stroke="{stroke}"/>'
        yield f'<text x="{_NODE_X[rank]}" y="68" class="rank">rank {rank}</text>'


def _nodes() -> Iterator[str]:
    for source, destination in INSIDE:
        (x, y), (u, v) = _node_at(source), _node_at(destination)
        side = (8 if v > y else -8) if (destination, source) in INSIDE else 0
        yield _line((x + side, y), (u + side, v), "inside", ends=(_RADIUS, _RADIUS + 2))
    for node in range(NODES):
        x, y = _node_at(node)
        yield f'<circle cx="{x}" cy="{y}" r="{_RADIUS}"/><text x="{x}" y="{y + 6}" class="node">{node}</text>'


def _svg(title: str, about: str, parts: list[str], other: str, cut: tuple[str, ...], *, carried: bool) -> str:
    """A picture on a white card, so that it is read on a light and on a dark page."""
    tips = "\n".join(
        f'<marker id="tip-{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="{size}" markerHeight="{size}" '
        f'markerUnits="userSpaceOnUse" orient="auto"><polygon points="0,0.5 8,4 0,7.5" fill="{fill}"/></marker>'
        for name, fill, size in (("cut", _EDGE, 11), ("b", _OF_B, 11), ("carry", _CARRY, 10), ("inside", _QUIET, 10))
    )
    second = "carry" if carried else "inside"
    legend = [
        f'<path d="M28,{424 - 16 * k} H68" class="{kind}" marker-end="url(#tip-{kind.split()[-1]})"/>'
        f'<text x="80" y="{429 - 16 * k}" class="legend">{name}</text>'
        for k, (kind, name) in enumerate(zip(("cut", "cut b")[: len(cut)], cut, strict=True))
    ] + [
        f'<path d="M28,450 H68" class="{second}" marker-end="url(#tip-{second})"/>'
        f'<text x="80" y="455" class="legend">{other}</text>',
    ]
    if carried:
        legend += [
            '<rect x="248" y="415" width="40" height="18" rx="6" class="row"/>'
            '<text x="298" y="429" class="legend">post: row of a node</text>',
            '<rect x="248" y="441" width="40" height="18" rx="6" class="row sum"/>'
            '<text x="298" y="455" class="legend">pre: sum for a node</text>',
        ]
    style = (
        f"text {{ fill: {_INK}; text-anchor: middle; font-size: 17px }}\n"
        f".title {{ font-size: 19px; font-weight: bold }} .rank {{ font-weight: bold; fill: {_QUIET} }}\n"
        f".small {{ font-size: 15px; fill: {_QUIET} }} .legend {{ font-size: 15px; text-anchor: start }}\n"
        f"circle {{ fill: #fff; stroke: {_INK}; stroke-width: 1.6 }} path {{ fill: none }}\n"
        f".cut {{ stroke: {_EDGE}; stroke-width: 2.6 }} .b {{ stroke: {_OF_B} }}\n"
        f".inside {{ stroke: {_QUIET}; stroke-width: 1.5 }}\n"
        f".carry {{ stroke: {_CARRY}; stroke-width: 1.8; stroke-dasharray: 6 4 }}\n"
        f".row {{ fill: #fff; stroke: {_INK}; stroke-width: 1.5 }} .sum {{ fill: #fde9d9; stroke: {_EDGE} }}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
            f' font-family="DejaVu Sans, Verdana, Arial, sans-serif" role="img" aria-label="{about}">',
            f"<style>\n{style}\n</style>",
            f"<defs>\n{tips}\n</defs>",
            f'<rect x="1" y="1" width="{_WIDTH - 2}" height="{_HEIGHT - 2}" rx="12" fill="#ffffff" stroke="#cbd5e1"/>',
            f'<text x="{_WIDTH // 2}" y="30" class="title">{title}</text>',
            *parts,
            *legend,
            "</svg>",
            "",
        ]
    )


# -- files ------------------------------------------------------------------------------------------------------------


def put_in(page: str, made: dict[str, str]) -> str:
    """``page`` with each text of ``made`` between its markers."""
    for name, text in made.items():
        place = re.compile(rf"(<!-- made: {name} -->\n).*?(\n<!-- end -->)", re.DOTALL)
        assert len(place.findall(page)) == 1, f"the page has no place for {name}, or several"
        page = place.sub(lambda match, text=text: f"{match[1]}\n{text}\n{match[2]}", page)  # type: ignore[misc]
    return page


def files() -> dict[Path, str]:
    """All files that are made, with their text."""
    made = examples()
    drawn = {FOLDER / f"example-{name}.svg": svg for name, svg in pictures(made).items()}
    return drawn | {PAGE: put_in(PAGE.read_text(), texts(made))}


def main() -> None:
    """Write them."""
    for path, text in files().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
