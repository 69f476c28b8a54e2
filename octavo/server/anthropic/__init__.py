"""Anthropic's Messages API, by way of chat completions."""
