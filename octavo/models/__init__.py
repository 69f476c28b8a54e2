"""Model families. `registry.build_model` makes one from a `ModelSpec`."""
