"""HTTPS: certificates from files, checked before anything else is started."""

from __future__ import annotations

import ssl

from octavo.core import env
from octavo.core.access_config import SecurityConfig
from octavo.core.errors import ConfigError

_REQUIREMENTS = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def tls_context(config: SecurityConfig) -> ssl.SSLContext | None:
    """What to serve HTTPS with; None for plain HTTP.

    Raises:
        ConfigError: a file cannot be read, is none of what it should be, or does not fit.
    """
    if config.ssl_certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    load_certificate(context, config)
    if config.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(config.ssl_ca_certs)
        except OSError as error:
            raise ConfigError(f"ssl_ca_certs {config.ssl_ca_certs}: {_reason(error)}") from error
        context.verify_mode = _REQUIREMENTS[config.ssl_cert_reqs]
    return context


def load_certificate(context: ssl.SSLContext, config: SecurityConfig) -> None:
    """Reads certificate and key; connections from now on get them.

    Raises:
        ConfigError: they cannot be used; the context keeps what it has.
    """
    certificate, key = config.ssl_certfile, config.ssl_keyfile
    password = config.ssl_keyfile_password
    if password is None:
        password = env.ssl_keyfile_password()
    for target in (
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        context,
    ):  # the first one is a rehearsal
        try:
            # Without a password, OpenSSL would ask for one at the terminal.
            target.load_cert_chain(str(certificate), key, password or "")
        except OSError as error:
            files = f"ssl_certfile {certificate}" + (f", ssl_keyfile {key}" if key else "")
            hint = "" if password else "; if the key has a password, set ssl_keyfile_password"
            raise ConfigError(f"{files}: {_reason(error)}{hint}") from error


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"OpenSSL says {error.reason or 'that it is no valid PEM file'}"
    return str(error.strerror)
