"""Decides what the next step computes, and takes in what came out. Pure Python, no tensors."""
