"""``mtx:FILE``: a square MatrixMarket matrix; entry (i, j) is the edge i -> j, its value the weight."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.io

from hpcgnn.data.sources.base import ArraySource, existing_file, reading
from hpcgnn.data.sources.spec import Spec
from hpcgnn.errors import HpcgnnError


def open_matrix_market(spec: Spec, folder: Path) -> ArraySource:
    """Coordinate matrices, also gzipped; a pattern has no weights, a symmetric one gives both directions.

    scipy's parser reads the whole file: 24 bytes an edge in memory.
    """
    path = existing_file(spec.name, "mtx")
    with reading(path, "MatrixMarket"):
        rows, columns, _, layout, field, _ = scipy.io.mminfo(str(path))
        if layout != "coordinate" or field not in ("pattern", "real", "double", "integer", "unsigned-integer"):
            raise HpcgnnError(f"{path} is a {field} {layout} matrix: edges need a coordinate one of real numbers")
        if rows != columns:
            raise HpcgnnError(f"{path} has {rows} rows and {columns} columns: a graph needs a square matrix")
        matrix = scipy.io.mmread(str(path))
    weight = None if field == "pattern" else matrix.data
    return ArraySource(str(path), int(rows), np.stack([matrix.row, matrix.col]), weight=weight)
