"""One rank's view of the graph, the order of its nodes, and plans of ranks that share a machine."""

from __future__ import annotations

# Orders of a rank's nodes (hpcgnn.graph.node_order), named here because the command line must not import torch.
ORDERS = ("degree", "rcm", "hubs")
METHODS = ("none", *ORDERS, "auto")

# Places of the features while a run trains (hpcgnn.graph.features_on_disk), the values of --features.
DISK = "disk"
PLACES = ("memory", DISK)
