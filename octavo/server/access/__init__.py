"""Who may use the server, and how much: API keys, their limits, and what keeps tenants apart.

`Access` holds keys and accounts; `Guard` is the one door that every request passes; `TenantEngine`
is the engine as one tenant sees it.
"""
