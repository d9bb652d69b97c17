"""Whether an installation fits the cluster that it is on: checks, each of which ends with one finding."""
