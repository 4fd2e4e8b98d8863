"""Seals: a last key "crc32" in a JSON object, so that no flipped bit is read as a number.

It is the CRC-32, as eight hexadecimal digits, of the text before it. Text without it is older.
"""

import re
import zlib

_SEAL = re.compile(rb',?\s*"crc32": "([0-9a-f]{8})"\s*\}\Z')


def sealed(text: bytes) -> bytes:
    """Returns the text of a JSON object with its seal, on a line of its own if it has lines."""
    assert text[:1] + text[-1:] == b"{}", text[-20:]
    body = text[:-1].rstrip()
    comma = b"" if body == b"{" else b","
    blank, end = (b"\n ", b"\n}") if b"\n" in body else (b" ", b"}")
    return b'%s%s%s"crc32": "%08x"%s' % (body, comma, blank, zlib.crc32(body), end)


def unsealed(content: bytes) -> bytes:
    """Returns the object without its seal. Raises ValueError if it is not what was sealed."""
    seal = _SEAL.search(content)
    if seal is None:
        return content
    body = content[: seal.start()]
    if int(seal[1], 16) != zlib.crc32(body):
        raise ValueError("the text differs from its checksum")
    return body + b"}"
