"""Finding a model's files and reading them: `source`, then `checkpoint`, then `weights`.

The first two need no torch and are quick; only `weights` and `safetensors_file` touch tensors.
"""
