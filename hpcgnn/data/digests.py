"""Digests of the data of a graph, by which files, runs and logs know whether they belong to the same graph.

``graph.h5`` and ``parts.h5`` have digests of edges, with their weights, types, features and sets of links, of features of nodes,
labels and masks as attributes (uint64), since version 4. Each is a sum of hashes by original ids, modulo 2**64. So it depends
neither on the partition, nor on the order of edges, nor on the size of the pieces in which the graph is read. Data that differ by
chance have the same digest with a probability of about 2**-64. A zero adds nothing, so these pairs have the same digest by
design: features with and without columns of zeros at the end, and edges whose weights or types are all 0 and edges without them.
Sparse and dense features, and half and full floats of the same values, have the same. Floats count by their bits, so -0.0 is not
0.0. :mod:`hpcgnn.data.sealing` computes digests, which takes numba, and this module, which is quick to import, compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

ATTRIBUTES = ("edges_digest", "features_digest", "labels_digest", "splits_digest")
EDGES = ATTRIBUTES[0]
ALL = ("nodes", "edges", "features", "labels", "splits")
"""The data of a graph, in the order in which sentences name them."""
FIRST_VERSION = 4  # of graph files and parts files with digests


def in_text(num_nodes: int, digests: Mapping[str, int]) -> dict[str, str]:
    """The identity of the data of a graph, by the names in :data:`ALL`, as plain text for checkpoints and logs. digests: by the
    names of their attributes, of which files of older versions have none."""
    return {"nodes": str(num_nodes)} | {
        name.removesuffix("_digest"): f"{value:016x}" for name, value in digests.items()
    }


def differences(one: Mapping[str, str], other: Mapping[str, str], names: Iterable[str] = ALL) -> str:
    """The names of the data in which two results of :func:`in_text` differ, in words, such as "edges and labels". Data that
    one of them does not tell of are left out, so the text is empty if nothing is known to differ."""
    both = one.keys() & other.keys()
    found = [name for name in names if name in both and one[name] != other[name]]
    return " and ".join(filter(None, (", ".join(found[:-1]), *found[-1:])))
