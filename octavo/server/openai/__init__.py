"""The OpenAI API: request schemas, response shapes, and a file for each endpoint."""
