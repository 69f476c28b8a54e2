"""HTTP: the OpenAI API over an `AsyncEngine`."""
