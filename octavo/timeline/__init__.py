"""What an engine did, step by step, for viewers of timelines."""
