"""The commands of the laboratory, which ``hpcgnn`` imports when they are called."""
