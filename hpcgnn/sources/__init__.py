"""Sources of graphs: files, the loaders of PyG and OGB, scikit-learn's digits, and generators.

npz:FILE[?split=K&nodes=N]  numpy arrays: num_nodes, edge_index, x or x_data.., y, train_mask..
pyg:NAME[?root=DIR&split=K] a data set of PyTorch Geometric, through its own loader
ogb:NAME[?root=DIR&download=yes]  a node data set of the Open Graph Benchmark, through its own loader; ogbn-papers100M and mag240m
                            in slabs from their raw files
dgl:FILE[?graph=K&x=NAME&y=NAME&weight=NAME&split=K&nodes=N]  a file of dgl.save_graphs
graphml:FILE[?x=KEY,KEY&y=KEY&weight=KEY]  GraphML, through networkx
edgelist:FILE[?nodes=N&source=COLUMN&target=COLUMN&weight=COLUMN]  text with an edge on each line: src dst [weight]
arclist:FILE[?nodes=N]      the same format, under the name that WebGraph gives it
binedges:FILE[?dtype=int64&nodes=N]  pairs of little-endian int32, uint32 or int64
parquet:FILE[?source=COLUMN&target=COLUMN&weight=COLUMN&nodes=N]  a table of edges
bvgraph:FILE                WebGraph's NAME.graph beside its NAME.properties
metis:FILE                  METIS .graph
mtx:FILE[?nodes=N]          MatrixMarket
rmat:scale=S,..  sbm:nodes=N,..  digits
"""

from __future__ import annotations

from pathlib import Path

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.sources.base import SOURCES, ArraySource, Source, SourceInfo, Spec, parse_spec

__all__ = ["SOURCES", "ArraySource", "Source", "SourceInfo", "Spec", "open_source"]


def open_source(text: str, folder: Path) -> Source:
    """Open the source that ``text`` names; ``folder`` is for temporary files. Raises :class:`HpcgnnError`."""
    spec = parse_spec(text)
    if spec.kind not in SOURCES:
        raise HpcgnnError(
            f"{text!r} is not a source: a source begins with one of {', '.join(f'{kind}:' for kind in SOURCES)}"
        )
    source: Source = SOURCES[spec.kind](spec, folder)
    spec.finish()
    return source
