"""Between clients and the engine: text, streams, stop strings, usage."""
