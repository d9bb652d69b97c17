"""Policies that decide in how many bits each row travels (AdaQP, Sylvie, PipeQS), and when it is waited for (PipeGCN as well)."""

from hpcgnn.policy.config import PolicyConfig

__all__ = ["PolicyConfig"]
