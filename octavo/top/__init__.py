"""``octavo top``: a server at a terminal, from its stream of statistics.

`client` talks to the server, `follow` keeps the picture in a thread of its own, `view` is what the
keys change, `frame` makes lines of both, `terminal` owns the screen, and `app` is the loop.
"""
