"""The kernels in numba: what runs where the native library could not be built."""
