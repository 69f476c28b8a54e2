"""One file a step. Each has ``wants(state)`` and ``apply(logits, states)``.

``apply`` gets the rows that want it, ``[rows, vocab]`` float32, and changes them in place. Order is
`octavo.sampling.pipeline`'s.
"""
