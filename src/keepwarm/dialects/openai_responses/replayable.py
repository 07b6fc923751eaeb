"""Thoughts in `encrypted_content`, as clients that keep nothing else of them send them back. It is
no secret, only opaque: the same client was told the thoughts in words."""

from __future__ import annotations

import base64

_PREFIX = "keepwarm1:"


def sealed(text: str) -> str:
    """What goes out."""
    return _PREFIX + base64.b64encode(text.encode()).decode()


def unsealed(content: str) -> str | None:
    """What came back; None where somebody else made it."""
    if not content.startswith(_PREFIX):
        return None
    try:
        return base64.b64decode(content.removeprefix(_PREFIX), validate=True).decode()
    except ValueError:  # of base64, or of UTF-8
        return None
