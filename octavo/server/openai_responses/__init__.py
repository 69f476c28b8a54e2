"""OpenAI's Responses API without stored state, by way of chat completions."""
