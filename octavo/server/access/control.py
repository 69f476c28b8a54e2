"""Which keys open the server, and the accounts behind them.

Keys are not kept: a table maps keyed hashes of them to accounts, with a secret that exists in this
process alone. So the time of a look-up tells nothing about any key, and a core dump holds none.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from pathlib import Path

from octavo.core import env
from octavo.core.access_config import PER_KEY, LimitsConfig, SecurityConfig
from octavo.core.errors import ConfigError
from octavo.core.protocols import Clock
from octavo.server.access.keys import Entry, KeyLimits, parse, single
from octavo.server.access.limits import Account


class Access:
    """The keys and accounts of one server.

    Args:
        reads_environment: keys there count as well.

    Raises:
        ConfigError: a key or the file of keys cannot be used, or a limit needs keys and there are
            none.
    """

    def __init__(
        self,
        security: SecurityConfig,
        limits: LimitsConfig,
        clock: Clock = time.monotonic,
        *,
        reads_environment: bool = True,
    ) -> None:
        self.isolates_caches = security.cache_isolation == "key"
        self._secret = secrets.token_bytes(32)
        self._clock = clock
        self._limits = KeyLimits.of(limits)
        self._file = security.api_key_file
        self._fixed = [single(key, "api_key", self._limits) for key in security.api_key]
        if reads_environment:
            self._fixed += self._of_environment()
        metrics = security.metrics_key or env.metrics_key()
        if metrics is not None:
            metrics = single(metrics, "metrics_key", self._limits).key
        self._metrics_digest = None if metrics is None else self._digest(metrics.encode())
        self._accounts: dict[str, Account] = {}
        self._by_digest: dict[bytes, Account] = {}
        self.reload()
        if not self.needs_key:
            self._check_without_keys(limits)

    @property
    def needs_key(self) -> bool:
        """Whether the server is for holders of keys alone."""
        return bool(self._by_digest)

    @property
    def hides_metrics(self) -> bool:
        """Whether metrics have a key of their own."""
        return self._metrics_digest is not None

    @property
    def num_keys(self) -> int:
        """Keys that open the server."""
        return len(self._by_digest)

    def account(self, key: bytes) -> Account | None:
        """The tenant that a key belongs to."""
        return self._by_digest.get(self._digest(key))

    def opens_metrics(self, key: bytes) -> bool:
        """Whether this is the key of the metrics."""
        wanted = self._metrics_digest
        return wanted is not None and hmac.compare_digest(self._digest(key), wanted)

    def reload(self) -> None:
        """Reads the file of keys again. Accounts whose names remain keep what they have used;
        requests in flight go on.

        Raises:
            ConfigError: it cannot be used; everything is as before.
        """
        entries = [*self._fixed, *self._read_file()]
        named: dict[bytes, tuple[str, Entry]] = {}
        limits: dict[str, KeyLimits] = {}
        admins: dict[str, bool] = {}
        for entry in entries:
            digest = self._digest(entry.key.encode())
            name = entry.name or f"key-{digest.hex()[:8]}"
            if digest in named:
                raise ConfigError(f"{entry.where}: the key is that of {named[digest][1].where}")
            if limits.setdefault(name, entry.limits) != entry.limits:
                raise ConfigError(
                    f"{entry.where}: {name} has other limits in an earlier place: a tenant has one "
                    "set of limits, whichever of its keys it uses"
                )
            if admins.setdefault(name, entry.is_admin) != entry.is_admin:
                raise ConfigError(
                    f"{entry.where}: {name} is admin with one of its keys and not with another: a "
                    "tenant is one or the other"
                )
            named[digest] = name, entry
        accounts = {name: self._account(name, limits[name], admins[name]) for name in limits}
        self._by_digest = {digest: accounts[name] for digest, (name, _) in named.items()}
        self._accounts = accounts

    def _account(self, name: str, limits: KeyLimits, is_admin: bool) -> Account:
        account = self._accounts.get(name)
        if account is None:
            return Account(name, limits, self._clock, is_admin=is_admin)
        account.set_limits(limits)
        account.set_admin(is_admin)
        return account

    def _read_file(self) -> list[Entry]:
        if self._file is None:
            return []
        source = f"api_key_file {self._file}"
        try:
            text = Path(self._file).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ConfigError(f"{source} is no UTF-8 text") from None  # it would quote the bytes
        except OSError as error:
            raise ConfigError(f"{source}: {error.strerror}") from error
        entries = list(parse(text, source, self._limits))
        if not entries:
            raise ConfigError(f"{source} has no keys: write one a line, or leave the flag out")
        return entries

    def _check_without_keys(self, limits: LimitsConfig) -> None:
        for name in PER_KEY:
            if getattr(limits, name) is not None:
                raise ConfigError(f"{name} is {getattr(limits, name)}, but there are no API keys")
        if self.isolates_caches:
            raise ConfigError("cache_isolation is key, but there are no API keys")

    def _of_environment(self) -> list[Entry]:
        found = [single(key, "api_key", self._limits) for key in filter(None, [env.api_key()])]
        if (lines := env.api_keys()) is not None:
            found += parse(lines.replace(",", "\n"), "OCTAVO_API_KEYS", self._limits)
        return found

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._secret, digest_size=32).digest()
