"""The kernels in plain torch and numpy: slow, obvious, and what the others are tested against."""
