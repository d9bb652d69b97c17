"""The kernels in C++ (folder ``native/`` of the repository), loaded with ctypes."""
