"""The cost of an epoch: seconds by phase, bytes and memory of each rank, from a partition, settings and fitted constants.
``docs/cost-model.md`` has the equations and the origin of each term."""
