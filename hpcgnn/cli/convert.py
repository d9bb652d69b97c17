"""``hpcgnn convert``: conversion of a graph from any source to ``graph.h5``."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import click

from hpcgnn.cli import console
from hpcgnn.cli.options import AS_JSON, FILE
from hpcgnn.data.schema import REGRESSION

_HELP = """Convert the graph SOURCE to the graph file OUTPUT.

\b
SOURCE is one of the following; parts in brackets are optional
  npz:FILE[?split=K&nodes=N]          numpy arrays (num_nodes, edge_index, x, y, masks)
  pyg:NAME[?root=DIR&split=K]         PyTorch Geometric: Cora, Reddit, WikipediaNetwork/chameleon
  ogb:NAME[?root=DIR&download=yes]    Open Graph Benchmark: ogbn-arxiv, ogbn-mag, ogbn-papers100M, mag240m, ogbl-wikikg2
  dgl:FILE[?graph=K&x=NAME&y=NAME]    DGL: a file written by dgl.save_graphs
  graphml:FILE[?x=KEY,KEY&y=KEY]      GraphML, read by networkx
  edgelist:FILE[?nodes=N&type=COLUMN] text lines: src dst [weight], or csv with names of columns; also arclist:FILE;
                                      ends and types of edges may be names: head,relation,tail
  binedges:FILE[?dtype=int64&nodes=N] binary pairs of little-endian int32, uint32 or int64
  parquet:FILE[?source=COLUMN&target=COLUMN&weight=COLUMN&type=COLUMN&attr=COLUMN,COLUMN&nodes=N]
  rdf:FILE[?train=TABLE&test=TABLE]   RDF in N-Triples; tables of labels are separated by tabs
  bvgraph:FILE                        WebGraph: NAME.graph beside NAME.properties
  metis:FILE   mtx:FILE[?nodes=N]      METIS .graph, MatrixMarket
  rmat:scale=17,degree=28,features=128,classes=40[,seed=0,signal=3,types=0,a=..,b=..,c=..]
  sbm:nodes=10000,blocks=10,degree=16[,homophily=0.8,features=64,seed=0,signal=3,types=0]
  digits                              handwritten digits as a nearest-neighbour graph

\b
Examples
  hpcgnn convert digits digits.h5
  hpcgnn convert 'pyg:Cora?root=data' cora.h5 --row-normalise
  hpcgnn convert 'edgelist:triples.csv?inverse=yes' knowledge.h5
  hpcgnn convert edgelist:web.txt.gz web.h5 --undirected --features degree:64 --labels random:40

The source's own split, features and labels are kept unless --split, --features or --labels is given. Files of any size can be
converted: edges are sorted on disk, in bounded memory.
"""


def _row_of_labels(meta: Any) -> dict[str, str]:
    if meta.task == REGRESSION:
        return {"labels": f"regression, {meta.num_classes:,} target{'s' * (meta.num_classes > 1)}"}
    return {"classes": f"{meta.num_classes:,} {meta.task}" if meta.num_classes else "none"}


@click.command("convert", help=_HELP)
@click.argument("source")
@click.argument("output", type=FILE)
@click.option("--split", metavar="RULE",
              help="Rule that divides the nodes into training, validation and test nodes: random:TRAIN,VAL,TEST[,SEED] with "
                   "shares such as random:0.6,0.2,0.2, or per-class:TRAIN,VAL[,SEED] with a number of nodes of each class "
                   "such as per-class:20,30; the other labelled nodes are test nodes. SEED is 0 by default.")  # fmt: skip
@click.option("--features", metavar="RULE",
              help="Rule that makes the node features: degree:D (one-hot in-degree in D columns, the last one for in-degrees "
                   "of D-1 and more), onehot (one-hot node id), random:D[,SEED] (D columns with mean 0 and variance 1), or "
                   "dense (the source's own features, with the zeros of sparse ones written out).")  # fmt: skip
@click.option("--labels", metavar="RULE",
              help="Rule that makes the labels: random:C[,SEED] draws one of C classes for each node, with which a graph "
                   "without labels trains, to measure time and memory; without a split of its own, it gets "
                   "random:0.6,0.2,0.2. real takes the source's labels as targets of regression, although all are whole "
                   "numbers.")  # fmt: skip
@click.option("--row-normalise", is_flag=True, help="Divide each feature row by the sum of its absolute values.")
@click.option("--undirected", is_flag=True,
              help="Add the reverse of every edge, and merge duplicate edges; their weights are added up. If the source lists "
                   "its edges in both directions, leave this out: weights would double.")  # fmt: skip
@click.option("--self-loops", is_flag=True, help="Add the edge (v, v) to every node v that has none.")
@click.option("--drop-duplicates", is_flag=True, help="Merge duplicate edges and add up their weights.")
@click.option("--force", is_flag=True, help="Overwrite OUTPUT if it exists.")
@AS_JSON
@click.option("--quiet", is_flag=True, help="Print neither a progress bar nor a table.")
def convert(source: str, output: Path, as_json: bool, quiet: bool, **options: Any) -> None:
    """Convert a graph; the help text is above."""
    # Imported here, so that `hpcgnn --help` does not wait for numba and scipy.
    from hpcgnn.base.compiled import compile_seconds
    from hpcgnn.sources.convert import ConvertOptions
    from hpcgnn.sources.convert import convert as convert_graph

    bar = partial(console.progress, quiet=quiet or as_json)
    summary = convert_graph(source, output, ConvertOptions(**options), bar)
    for text in summary.notes:
        console.note(text)
    if as_json:
        click.echo(json.dumps(summary.as_json()))
    elif not quiet:
        meta = summary.meta
        kind = "sparse" if meta.x_nnz is not None and not meta.x_by_type else f"dense {meta.x_dtype}"
        rows = {
            "source": source,
            "nodes": meta.num_nodes,
            **{f"  {each.name}": f"{each.count:,} with {each.columns or 'no'} features" for each in meta.node_types},
            "edges": f"{meta.num_edges:,} {'directed' if meta.directed else 'undirected, both ways'}",
            "types of edges": f"{meta.num_edge_types:,}" if meta.num_edge_types else "none",
            "features of edges": f"{meta.num_edge_features:,}" if meta.num_edge_features else "none",
            "features": f"{meta.num_features:,} {kind}" if meta.num_features else "none",
            **_row_of_labels(meta),
            "train / val / test": " / ".join(f"{size:,}" for size in summary.split_sizes.values()) or "none",
            "seconds": f"{summary.seconds:.2f}",
            "seconds of compiling": f"{compile_seconds():.2f}",
            "peak memory": console.size(summary.peak_memory_bytes),
            "file size": console.size(summary.file_bytes),
        }
        console.table(str(output), rows.items())
