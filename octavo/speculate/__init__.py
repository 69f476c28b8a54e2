"""Guesses tokens ahead, so that one step may compute several of a request.

Guesses are checked with the model itself, and only what it would have generated anyway is kept: they
change how fast tokens come, never which.
"""
