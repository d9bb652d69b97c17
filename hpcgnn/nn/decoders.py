"""Decoders: scores of links from the embeddings of their ends and, in graphs with types of edges, from their relation.

A score has two steps. A *query* is a row made of the embedding of one end and the vector of the relation. It is then compared
with the embedding of the other end. So one query serves all links, negatives and candidates that share the end and the relation.
Shapes: Q queries, S rows to compare with, F columns of embeddings, R relations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F

from hpcgnn.kernels import Csr, activation, gather_rows, sddmm
from hpcgnn.nn.layers import Dense, xavier
from hpcgnn.nn.linear import Compute

End = Literal["source", "target"]


class Decoder(torch.nn.Module, ABC):
    """The scores of links.

    Args:
        width: F.
        relations: R, the number of types of edges; 0 for a graph without.
        compute: arithmetic of dense products.
        backend: kernel backend.
    """

    # Whether the score depends on the relation, so that the graph needs types of edges.
    has_relations: ClassVar[bool] = False

    def __init__(self, width: int, relations: int = 0, *, compute: Compute = "float32", backend: str = "auto") -> None:
        super().__init__()
        self.compute, self.backend = compute, backend
        self.add_weights(width, relations)

    def add_weights(self, width: int, relations: int) -> None:
        """Make the decoder's parameters, if it has any; each rank holds all of them."""

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        """The rows that are compared, from (n, F) results of the model."""
        return x

    def query(self, x: torch.Tensor, relation: torch.Tensor, end: End) -> torch.Tensor:
        """(Q, F) queries from the embeddings ``x`` (Q, F) of the ``end`` that is given, and (Q,) int64 relations."""
        return x

    @abstractmethod
    def forward(self, links: Csr, queries: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """A score (entries,) for each entry of ``links`` (Q, S), from queries (Q, F) and embeddings of other ends (S, F)."""

    @abstractmethod
    def every_score(self, queries: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """(Q, S) scores of all combinations of queries (Q, F) and embeddings of other ends (S, F)."""


class DotDecoder(Decoder):
    """The inner product of the two embeddings; it has no parameters."""

    def forward(self, links: Csr, queries: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        return sddmm(links, queries, others, "dot", backend=self.backend)

    def every_score(self, queries: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        return queries @ others.T


class DistMultDecoder(DotDecoder):
    """``x_s diag(r) x_t``: the product of both embeddings and the relation's vector, summed (Yang et al. 2015); PyG's
    ``DistMult``."""

    has_relations = True

    def add_weights(self, width: int, relations: int) -> None:
        self.relation = xavier(relations, width)

    def query(self, x: torch.Tensor, relation: torch.Tensor, end: End) -> torch.Tensor:
        return x * gather_rows(self.relation, relation, self.backend)


class ComplExDecoder(DistMultDecoder):
    """The real part of ``x_s diag(r) conj(x_t)`` (Trouillon et al. 2016); PyG's ``ComplEx``. The first half of the columns is
    the real part, the other the imaginary one."""

    def query(self, x: torch.Tensor, relation: torch.Tensor, end: End) -> torch.Tensor:
        return _product(x, gather_rows(self.relation, relation, self.backend), end)


def _product(x: torch.Tensor, factor: torch.Tensor, end: End) -> torch.Tensor:
    """(Q, F) products of complex rows, with the conjugate factor if ``x`` is at the target: the product or the distance with the
    other end is then the same from both ends."""
    (a, b), (c, d) = x.chunk(2, dim=1), factor.chunk(2, dim=1)
    d = d if end == "source" else -d
    return torch.cat((a * c - b * d, a * d + b * c), dim=1)


class TransEDecoder(Decoder):
    """``margin - |x_s + r - x_t|`` with 1-norms and embeddings of norm 1 (Bordes et al. 2013); PyG's ``TransE``, whose score
    has no margin. The margin is learned, because the cross-entropy of scores below 0 is never small; it changes no rank.
    Training takes O(links x F) memory."""

    has_relations = True
    norm: ClassVar[int] = 1

    def add_weights(self, width: int, relations: int) -> None:
        self.relation = torch.nn.Parameter(F.normalize(torch.empty(relations, width).uniform_(-1, 1), p=1))
        self.margin = torch.nn.Parameter(torch.ones(1))

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(x, p=1)

    def query(self, x: torch.Tensor, relation: torch.Tensor, end: End) -> torch.Tensor:
        moved = gather_rows(self.relation, relation, self.backend)
        return x + moved if end == "source" else x - moved

    def forward(self, links: Csr, queries: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        apart = gather_rows(queries, links.entry_rows(), self.backend) - gather_rows(
            others, links.indices, self.backend
        )
        return self.margin - torch.linalg.vector_norm(apart, self.norm, dim=1)

    def every_score(self, queries: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        # Not by products, which lose the digits of small distances.
        return self.margin - torch.cdist(queries, others, self.norm, "donot_use_mm_for_euclid_dist")


class RotatEDecoder(TransEDecoder):
    """``margin - |x_s r - x_t|`` with 2-norms, complex rows as of :class:`ComplExDecoder` and ``r`` = exp(i angle), an angle for
    each two columns (Sun et al. 2019, who add up absolute values); PyG's ``RotatE``, whose margin is not learned."""

    norm = 2

    def add_weights(self, width: int, relations: int) -> None:
        self.relation = torch.nn.Parameter(torch.empty(relations, width // 2).uniform_(0, 2 * torch.pi))
        self.margin = torch.nn.Parameter(torch.ones(1))

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def query(self, x: torch.Tensor, relation: torch.Tensor, end: End) -> torch.Tensor:
        turns = torch.cat((self.relation.cos(), self.relation.sin()), dim=1)
        return _product(x, gather_rows(turns, relation, self.backend), end)


class MLPDecoder(Decoder):
    """Two dense layers on the element-wise product of the two embeddings, as in OGB's baselines. It takes O(entries x F)
    memory.
    """

    def add_weights(self, width: int, relations: int) -> None:
        self.hidden = Dense(width, width, compute=self.compute, backend=self.backend)
        self.out = Dense(width, 1, compute=self.compute, backend=self.backend)

    def forward(self, links: Csr, queries: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        # Indexing is not used, because torch then adds up gradients of rows in an order that depends on the threads.
        ends = gather_rows(queries, links.entry_rows(), self.backend), gather_rows(others, links.indices, self.backend)
        return self._scores(ends[0] * ends[1])

    def every_score(self, queries: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        return torch.stack([self._scores(query * others) for query in queries])  # not Q S F values at once

    def _scores(self, joint: torch.Tensor) -> torch.Tensor:
        return self.out(activation(self.hidden(joint), backend=self.backend))[:, 0]


# By the names of hpcgnn.nn.config.DECODERS, which a command's help needs without torch.
CLASSES: dict[str, type[Decoder]] = {
    "dot": DotDecoder,
    "mlp": MLPDecoder,
    "distmult": DistMultDecoder,
    "complex": ComplExDecoder,
    "rotate": RotatEDecoder,
    "transe": TransEDecoder,
}
