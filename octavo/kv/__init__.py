"""Paged KV memory as bookkeeping: which block holds what, and who uses it.

Pure Python, no tensors: the same code serves the engine, the simulator and microsecond tests. How
K and V lie inside a block is known to `octavo.attention` alone.
"""
