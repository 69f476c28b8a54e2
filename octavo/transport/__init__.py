"""Moves typed messages between front end and engine; knows nothing of what they mean."""
