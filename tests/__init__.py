"""Tests and their tools: whatever they compile is checked, unless MONOGRAPH_CHECKED=0 says not."""

import os

os.environ.setdefault("MONOGRAPH_CHECKED", "1")
