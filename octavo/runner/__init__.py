"""Everything that owns device memory: turns a `StepPlan` into tensors, and tensors into a result.

Learns of blocks from the plan only; knows nothing of queues, prefixes or clients.
"""
