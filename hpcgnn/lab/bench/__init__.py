"""Measurements of our kernels beside other libraries and the limits of the machine."""
