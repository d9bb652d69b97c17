"""Features that stay in the parts file and are read in blocks of rows where a product or an aggregation needs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch

from hpcgnn.base.host import host_values
from hpcgnn.data.stored import RowsOnDisk
from hpcgnn.kernels import DropoutMask, buffers
from hpcgnn.kernels.activation import drop

_BLOCK_BYTES = 16 << 20  # a block is read and used about as fast as larger ones
_MOST_BLOCKS = 64  # each block of an aggregation looks at all rows of the result


@dataclass(frozen=True, eq=False)
class FeaturesOnDisk:
    """Dense features (n, F) of a rank's nodes, in the order of the file, which never take more memory than two blocks of rows.

    rows: of the file. width: F. dtype: of the blocks, whatever the file has. mask: dropout that blocks are given. block_share:
    size of a block, as a share of the usual one. Products with these features read them once each, forward and backward.
    """

    rows: RowsOnDisk
    width: int
    dtype: torch.dtype = torch.float32
    mask: DropoutMask | None = None
    backend: str = "auto"
    block_share: float = 1.0

    # As of a tensor: nothing differentiates with respect to features, and nobody writes to them.
    requires_grad: ClassVar[bool] = False
    _version: ClassVar[int] = 0
    device: ClassVar[torch.device] = torch.device("cpu")

    @property
    def shape(self) -> tuple[int, int]:
        """(n, F)."""
        return self.rows.count, self.width

    def element_size(self) -> int:
        """Bytes of a value of a block."""
        return self.dtype.itemsize

    def to(self, dtype: torch.dtype) -> FeaturesOnDisk:
        """These features with blocks of another type."""
        return replace(self, dtype=dtype)

    def dropped(self, mask: DropoutMask, backend: str) -> FeaturesOnDisk:
        """These features with dropout, which is computed again whenever a block is read."""
        return replace(self, mask=mask, backend=backend)

    def blocks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """All rows in order: pairs of a range of rows and their features (m, F), memory of the caller's own."""
        count, row_bytes = self.rows.count, max(1, self.width * self.dtype.itemsize)
        block_bytes = max(1, round(self.block_share * _BLOCK_BYTES))
        parts = max(1, min(_MOST_BLOCKS, -(-count * row_bytes // block_bytes)))
        ranges = [slice(*pair) for pair in pairwise(count * part // parts for part in range(parts + 1))]
        for rows, following in zip(ranges, [*ranges[1:], slice(0, 0)], strict=True):
            yield rows, self._block(rows, following)

    def _block(self, rows: slice, following: slice) -> torch.Tensor:
        stored = torch.from_numpy(np.empty(0, self.rows.dtype)).dtype
        x = buffers.empty(rows.stop - rows.start, self.width, stored)
        self.rows.read(rows, host_values(x), following)
        if stored is not self.dtype:
            x = buffers.empty(x.shape[0], self.width, self.dtype).copy_(x)
        if self.mask is None:
            return x
        return drop(x, replace(self.mask, ids=self.mask.ids[rows]), self.backend)

    def whole(self) -> torch.Tensor:
        """All features (n, F) in memory."""
        x = torch.empty(self.shape, dtype=self.dtype)
        for rows, block in self.blocks():
            x[rows] = block
        return x
