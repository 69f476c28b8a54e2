"""What a machine can serve, worked out before anything is loaded. No tensors."""
