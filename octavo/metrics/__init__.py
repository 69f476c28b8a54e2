"""Numbers about steps and requests. `stats` is plain data; `registry` exposes it to Prometheus."""
