"""boto3 clients: made when they are first needed, one per process and connection, used by all threads.

Never carried over a fork: sockets of a pool must not have two owners. boto3 itself retries nothing (`_s3_requests`
does, and has to know of every try).
"""

import os
import threading
from typing import Any, Final
from urllib.parse import urlsplit

import boto3
from botocore.config import Config

from penstock.storage._s3_address import S3Connection

_POOL_SIZE: Final = 32
"""Connections that are kept open; the most threads that use a store at once."""

_clients: dict[tuple[int, S3Connection], Any] = {}
_lock = threading.Lock()


def client_of(connection: S3Connection) -> Any:
    """A client that is safe for threads."""
    key = (os.getpid(), connection)
    with _lock:  # making a client is not safe for threads
        if key not in _clients:
            _clients[key] = _make(connection)
        return _clients[key]


def _make(connection: S3Connection) -> Any:
    session = boto3.session.Session()
    path_style = connection.path_style
    client = _make_with(session, connection, path_style=bool(path_style))
    if path_style is None and not _is_aws(client.meta.endpoint_url):
        # The endpoint may be the environment's; only the client knows. Others seldom have a DNS name per bucket.
        client.close()
        client = _make_with(session, connection, path_style=True)
    return client


def _make_with(session: Any, connection: S3Connection, *, path_style: bool) -> Any:
    return session.client(
        "s3",
        endpoint_url=connection.endpoint or None,
        region_name=connection.region or session.region_name or "us-east-1",
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": "path" if path_style else "auto"},
            connect_timeout=connection.connect_timeout_us / 1e6,
            read_timeout=connection.read_timeout_us / 1e6,
            retries={"total_max_attempts": 1},
            max_pool_connections=_POOL_SIZE,
            tcp_keepalive=True,
            # Each write carries its SHA-256; reads are compared where the store has kept it.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_supported",
        ),
    )


def _is_aws(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))
