"""TLS contexts from the flags: for clients of the router (with or without client certificates), and for its workers."""

from __future__ import annotations

import ssl

from sgl_epd.errors import ConfigError
from sgl_epd_router.args import RouterConfig


def server_context(config: RouterConfig) -> ssl.SSLContext | None:
    """None: plain HTTP. With `--tls-client-ca-path` only clients with a certificate of that CA get in (mTLS)."""
    if config.tls_cert_path is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load(context, config.tls_cert_path, config.tls_key_path, "--tls-cert-path")
    if config.tls_client_ca_path:
        _trust(context, config.tls_client_ca_path, "--tls-client-ca-path")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(config: RouterConfig) -> ssl.SSLContext | None:
    """None: the system's CAs, no certificate of our own. Workers' certificates are always verified.

    With `--ca-cert-path` only that CA counts, not the system's.
    """
    if config.ca_cert_path is None and config.client_cert_path is None:
        return None
    if config.ca_cert_path:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _trust(context, config.ca_cert_path, "--ca-cert-path")
    else:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    if config.client_cert_path:
        _load(context, config.client_cert_path, config.client_key_path, "--client-cert-path")
    return context


def _load(context: ssl.SSLContext, cert: str, key: str | None, flag: str) -> None:
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{flag}: cannot use {cert} with its key: {error}") from error


def _trust(context: ssl.SSLContext, path: str, flag: str) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{flag}: {path} holds no CA certificates: {error}") from error
