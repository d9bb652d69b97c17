"""Policies that choose the bit-width of each row (AdaQP, Sylvie, PipeQS) and its staleness (PipeGCN, Sylvie, PipeQS)."""

from hpcgnn.policy.config import PolicyConfig

__all__ = ["PolicyConfig"]
