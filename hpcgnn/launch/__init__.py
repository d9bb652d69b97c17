"""The start of ranks: MPI's launcher with the flags that it needs here, and job scripts."""
