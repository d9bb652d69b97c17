"""Benchmarks, studies, the cost model, reports and virtual hosts, with their commands. The core does not import them."""
