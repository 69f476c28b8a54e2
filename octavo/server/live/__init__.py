"""``/stats/stream``: how things stand, as they change, for any number of readers."""
