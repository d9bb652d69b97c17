"""One rank's view of the graph, the order of its nodes, and plans of ranks that share a machine."""
