"""What an epoch costs: seconds by phase, bytes and memory of each rank, from a partition, settings and fitted constants.

Equations and where each term comes from: ``docs/cost-model.md``.
"""
