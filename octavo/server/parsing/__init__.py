"""Tells an answer's text, reasoning and tool calls apart while it streams."""
