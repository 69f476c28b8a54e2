"""The step loop: plan, execute, commit."""
