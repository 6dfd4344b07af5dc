"""The kernels of views."""
