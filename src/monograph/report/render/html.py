"""Pages of HTML without outside files: one style, one script, and a policy that allows no more."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from typing import Any

__all__ = ["data_block", "escape", "page"]


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page(title: str, body: str, style: str, script: str = "") -> str:
    """Return a page. Its policy allows this style and this script by digest, and nothing else.

    Text from a model must be escaped in `body`, or come in a `data_block`.
    """
    scripts = f"script-src {_digest(script)}; " if script else ""
    policy = (
        f"default-src 'none'; {scripts}style-src {_digest(style)}; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )
    code = f"<script>{script}</script>" if script else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{style}</style></head>"
        f"<body>{body}{code}</body></html>\n"
    )


def data_block(identifier: str, content: Any) -> str:
    """Return data for the script of a page. No text in it can end the block or be markup."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{escape(identifier)}">{text}</script>'
