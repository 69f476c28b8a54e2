"""The vocabulary of the engine: configuration, requests, plans, errors.

Imports nothing else of Octavo and no tensor library, so that the scheduler, the server and the
simulator can share it and start in milliseconds.
"""
