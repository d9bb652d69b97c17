"""Measurements: aggregation and quantization against other libraries and against what the machine can do at most."""
