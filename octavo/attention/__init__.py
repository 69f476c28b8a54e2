"""Attention over the paged KV cache, and the only place that knows how a block is laid out.

`base` holds the vocabulary, `reference` is slow and obvious, `sdpa` is quick plain torch, and
`select` chooses between them with its reasons.
"""
