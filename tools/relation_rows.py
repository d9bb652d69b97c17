"""The rows that ranks send in an aggregation over types of edges: by one minimum cover for all types, and by other plans.

    python tools/relation_rows.py npz:graph.npz rdf:triples.nt.gz --parts 2 4 8

Prints a table in Markdown, with a line for each graph and number of parts. `joint`: the plan that models with relations use.
`by type`: the sum of the minimum covers of the types one by one. `post`, `pre`: sources only, and sums of pairs of a node and a
type only. `random types`: the ratio of `by type` to `joint` for the same edges with their types permuted. Graphs are partitioned
with the defaults of `hpcgnn partition`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from hpcgnn.data.graph_file import PartsFile
from hpcgnn.partition import PartitionOptions, partition
from hpcgnn.plan import plan_receiver
from hpcgnn.plan.relations import RelationRows
from hpcgnn.sources.convert import ConvertOptions, convert
from hpcgnn.world.thread_world import one_rank


def rows_of(parts: PartsFile, part: int, permuted: np.random.Generator | None = None) -> np.ndarray:
    """(4,) numbers of rows that ``part`` receives: joint, by type, post, pre."""
    first, last = parts.part(part)
    indptr, indices = parts.edges(first, last)
    types = parts.of_edges("type", int(indptr[0]), int(indptr[-1]))
    if types is None:
        raise SystemExit(f"{parts.path} has no types of edges")
    types = types if permuted is None else permuted.permutation(types)
    destinations = np.repeat(np.arange(last - first), np.diff(indptr))

    def received(kept: np.ndarray, strategy: str) -> int:
        lengths = np.bincount(destinations[kept], minlength=last - first)
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        pairs = RelationRows.of(types[kept], destinations[kept], last - first, parts.meta.num_edge_types)
        plan = plan_receiver(offsets, indices[kept], parts.node_offsets, part, strategy, pairs.rows)
        return int(plan.receive_from.counts(parts.num_parts).sum())

    everything = np.ones(types.size, bool)
    by_type = sum(received(types == kind, "hybrid") for kind in np.unique(types).tolist())
    return np.array(
        [received(everything, "hybrid"), by_type, received(everything, "post"), received(everything, "pre")]
    )


def lines(source: str, counts: list[int], folder: Path) -> None:
    """Print the lines of one graph."""
    graph = folder / "graph.h5"
    meta = convert(source, graph, ConvertOptions(force=True)).meta
    name = source.partition(":")[2].partition("?")[0].rpartition("/")[2]
    for count in counts:
        partition(one_rank(), graph, folder / "parts.h5", PartitionOptions(count, plan="none", force=True))
        rng = np.random.default_rng(0)
        with PartsFile(folder / "parts.h5") as parts:
            joint, by_type, post, pre = sum(rows_of(parts, part) for part in range(count))
            other, others_by_type, *_ = sum(rows_of(parts, part, rng) for part in range(count))
        print(
            f"| {name} | {meta.num_nodes:,} | {meta.num_edges:,} | {meta.num_edge_types} | {count} | {joint:,} | {by_type:,} | "
            f"{by_type / joint:.2f} | {post:,} | {pre:,} | {others_by_type / other:.2f} |",
            flush=True,
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", help="sources as for `hpcgnn convert`")
    parser.add_argument("--parts", nargs="+", type=int, default=[2, 4, 8])
    given = parser.parse_args()
    print("| graph | nodes | edges | types | parts | joint | by type | by type / joint | post | pre | random types |")
    print("| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |")
    with tempfile.TemporaryDirectory() as folder:
        for source in given.sources:
            lines(source, given.parts, Path(folder))


if __name__ == "__main__":
    main()
