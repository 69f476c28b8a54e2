"""Output of a given form: grammars over a model's tokens, compiled and matched by `llguidance`.

Owns what becomes of `octavo.core.params.Structured`: its grammar, the limits that keep a hostile
one from costing more than its own request, and a matcher for each request. Knows tokens and bits,
no tensors: `octavo.sampling` asks which tokens may follow and rules the others out.
"""
