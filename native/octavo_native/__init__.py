"""Compiled CPU kernels of Octavo. Import torch first, so that both share one OpenMP runtime."""
