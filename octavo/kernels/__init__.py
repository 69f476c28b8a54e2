"""Compiled kernels. Each module here finds one family of them and says why it cannot be used."""
