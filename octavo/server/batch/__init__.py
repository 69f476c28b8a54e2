"""Files of requests, in OpenAI's batch format, served by the application without a socket."""
