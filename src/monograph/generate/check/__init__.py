"""Checks of a rewritten decoder against its export."""
