"""The parts of a decoder: linear, norm, rotary, mlp, embedding and attention layers.

Parameters have the names that the loader fills; they are left uninitialised until then.
"""
