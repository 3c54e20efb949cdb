"""The body of an HTTP answer, read up to a bound, however it is packed.

The session must be made with `auto_decompress=False`: aiohttp unpacks without a bound.
"""

from __future__ import annotations

import zlib

import aiohttp

_GZIP_OR_ZLIB = 47
ENCODINGS = "gzip, deflate"
"""For `Accept-Encoding`: what `read_body` unpacks."""


class BodyError(Exception):
    """A body that is too long, or packed in a way that can't be read."""


async def read_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body, unpacked.

    Raises:
        BodyError: it has more than `limit` bytes, or is packed otherwise than with `ENCODINGS`.
        aiohttp.ClientError, OSError, TimeoutError: it did not come to its end.
    """
    body = bytearray()
    async for chunk in response.content.iter_chunked(65536):
        body += chunk
        if len(body) > limit:
            response.close()
            raise BodyError(f"an answer of more than {limit} bytes")
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        return bytes(body)
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise BodyError(f"an answer packed as {encoding[:40]!r}, which nobody asked for")
    return _unpacked(bytes(body), limit)


def _unpacked(body: bytes, limit: int) -> bytes:
    found = bytearray()
    left = body
    try:
        # A gzip body may be several members after each other (RFC 1952, 2.2).
        while left:
            member = zlib.decompressobj(_GZIP_OR_ZLIB)
            found += member.decompress(left, limit + 1 - len(found))
            if len(found) > limit:
                raise BodyError(f"an answer of more than {limit} bytes")
            if not member.eof:
                raise BodyError("a packed answer that is cut off")
            left = member.unused_data
    except zlib.error as error:
        raise BodyError(f"an answer that can't be unpacked: {error}") from None
    return bytes(found)
