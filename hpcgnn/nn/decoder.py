"""Scores of links, from the embeddings of their two ends."""

from __future__ import annotations

import torch

from hpcgnn.kernels import Csr, activation, gather_rows, sddmm
from hpcgnn.nn.layers import Dense


class DotDecoder(torch.nn.Module):
    """The inner product of the two embeddings; it has no parameters."""

    def __init__(self, width: int, *, compute: str = "float32", backend: str = "auto") -> None:
        super().__init__()
        self.backend = backend

    def forward(self, links: Csr, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """A score (entries,) for each entry of ``links`` (R, S), from target (R, F) and source (S, F) embeddings."""
        return sddmm(links, target, source, "dot", backend=self.backend)


class MLPDecoder(torch.nn.Module):
    """Two dense layers on the element-wise product of the two embeddings, as in OGB's baselines. It takes O(entries x F)
    memory.
    """

    def __init__(self, width: int, *, compute: str = "float32", backend: str = "auto") -> None:
        super().__init__()
        self.backend = backend
        self.hidden = Dense(width, width, compute=compute, backend=backend)
        self.out = Dense(width, 1, compute=compute, backend=backend)

    def forward(self, links: Csr, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """See :meth:`DotDecoder.forward`."""
        # Indexing is not used, because torch then adds up gradients of rows in an order that depends on the threads.
        ends = gather_rows(target, links.entry_rows(), self.backend), gather_rows(source, links.indices, self.backend)
        joint = ends[0] * ends[1]
        return self.out(activation(self.hidden(joint), backend=self.backend))[:, 0]


def make_decoder(name: str, width: int, *, compute: str, backend: str) -> DotDecoder | MLPDecoder:
    """The decoder ``name``, one of :data:`hpcgnn.nn.config.DECODERS`, for embeddings of ``width``."""
    decoder = DotDecoder if name == "dot" else MLPDecoder
    return decoder(width, compute=compute, backend=backend)
