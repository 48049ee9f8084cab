"""How an S3 store is written down: `s3://bucket/folder?endpoint=http://host:9000&retry_for=2m`.

What the address leaves out comes from where every AWS tool looks for it: AWS_ENDPOINT_URL, AWS_REGION, the profile in
~/.aws. Credentials are never part of an address: it is stored, logged and shown.
"""

import difflib
import re
from typing import Final
from urllib.parse import parse_qsl, quote, urlsplit

import msgspec

from penstock.model.durations import format_duration, parse_duration
from penstock.model.errors import UserError

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_EXAMPLE: Final = "write s3://bucket/folder, or s3://bucket/folder?endpoint=https://host:9000&region=eu-west-1"


class S3Connection(msgspec.Struct, frozen=True, kw_only=True):
    """What a client is made from; stores with equal ones share it."""

    endpoint: str = ""
    """Where the store listens; empty: AWS, or what the environment says."""

    region: str = ""
    """Part of every signature; empty: what the environment says."""

    path_style: bool | None = None
    """http://host/bucket/key instead of http://bucket.host/key. None: for every endpoint that is not AWS's own."""

    connect_timeout_us: int = 5_000_000
    """For the connection alone. A host that is there answers within milliseconds."""

    read_timeout_us: int = 30_000_000
    """Without a byte for this long, a request is given up and made again. Slow stores take seconds for a write."""


class S3Address(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket, a folder in it, and how to get there."""

    bucket: str
    folder: str = ""
    connection: S3Connection = S3Connection()

    retry_for_us: int = 180_000_000
    """A request that fails is made again for this long. Longer than the two minutes for which a store may well be
    away: a checkpoint that is late costs nothing, one that fails is tolerated a few times only."""

    @property
    def uri(self) -> str:
        """Opens the same store in another process."""
        folder = f"/{self.folder}" if self.folder else ""
        options = "&".join(f"{name}={quote(value, safe=':/')}" for name, value in self._options())
        return f"s3://{self.bucket}{folder}" + (f"?{options}" if options else "")

    def _options(self) -> list[tuple[str, str]]:
        """Those that are not what they would be anyhow."""
        plain, connection = S3Address(bucket=self.bucket), self.connection
        texts = {
            "endpoint": connection.endpoint,
            "region": connection.region,
            "path_style": "" if connection.path_style is None else str(connection.path_style).lower(),
        }
        durations = {
            "connect_timeout": (connection.connect_timeout_us, plain.connection.connect_timeout_us),
            "read_timeout": (connection.read_timeout_us, plain.connection.read_timeout_us),
            "retry_for": (self.retry_for_us, plain.retry_for_us),
        }
        texts |= {name: format_duration(value) for name, (value, usual) in durations.items() if value != usual}
        return [(name, text) for name, text in texts.items() if text]


_OPTIONS: Final = ("endpoint", "region", "path_style", "connect_timeout", "read_timeout", "retry_for")


def parse_s3_address(uri: str) -> S3Address:
    """P017 when it cannot be read."""
    place, _, query = uri.removeprefix("s3://").partition("?")
    bucket, _, folder = place.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise UserError("P017", f'{uri}: "{bucket}" cannot be the name of a bucket', fix=_EXAMPLE)
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS or name in options or not value:
            raise UserError("P017", f'{uri}: cannot use the option "{name}={value}"', fix=_option_fix(name))
        options[name] = value
    connection = S3Connection(
        endpoint=_endpoint(uri, options.get("endpoint", "")),
        region=options.get("region", ""),
        path_style=_truth(uri, options.get("path_style")),
        connect_timeout_us=_duration(options, "connect_timeout", S3Connection().connect_timeout_us),
        read_timeout_us=_duration(options, "read_timeout", S3Connection().read_timeout_us),
    )
    address = S3Address(bucket=bucket, folder=folder.strip("/"), connection=connection)
    return msgspec.structs.replace(address, retry_for_us=_duration(options, "retry_for", address.retry_for_us))


def _option_fix(name: str) -> str:
    near = difflib.get_close_matches(name, _OPTIONS, n=1)
    return (
        f'did you mean "{near[0]}"?' if near and near[0] != name else f"each once, with a value: {', '.join(_OPTIONS)}"
    )


def _endpoint(uri: str, endpoint: str) -> str:
    parts = urlsplit(endpoint)
    fits = parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/")
    if endpoint and (not fits or parts.username is not None or parts.query):
        raise UserError(
            "P017",
            f"{uri.partition('?')[0]}: the endpoint must be http://host:port or https://host:port and no more",
            fix="the bucket stands in front of the question mark, credentials in the environment or in ~/.aws",
        )
    return endpoint.removesuffix("/")


def _truth(uri: str, text: str | None) -> bool | None:
    if text not in (None, "true", "false"):
        raise UserError("P017", f"{uri}: path_style is true or false", fix=_EXAMPLE)
    return None if text is None else text == "true"


def _duration(options: dict[str, str], name: str, usual: int) -> int:
    return parse_duration(options[name], what=name) if name in options else usual
