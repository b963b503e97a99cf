"""Short texts of ONNX nodes and types for tables."""

from __future__ import annotations

from collections.abc import Sequence

from monograph.program.program import Step

WIDTH = 60
"""The largest width of a list of nodes; a longer name keeps its end."""


def nodes_text(nodes: Sequence[str], width: int = WIDTH) -> str:
    """Return the first nodes and the number of others; names lose the folder that all share."""
    if not nodes:
        return "-"
    short = [nodes[0], *(_without(name, nodes[0]) for name in nodes[1:])]
    shown = [_ending(short[0], width)]
    for name in short[1:]:
        if len(", ".join([*shown, name])) > width:
            break
        shown.append(name)
    left = len(nodes) - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left else "")


def _without(name: str, first: str) -> str:
    """Return a name without the folders that it shares with the first one."""
    pieces, other = name.split("/"), first.split("/")
    same = 0
    while same < min(len(pieces), len(other)) - 1 and pieces[same] == other[same]:
        same += 1
    # One shared piece is the empty one before a leading slash.
    return name if same < 2 else "…/" + "/".join(pieces[same:])


def _ending(name: str, width: int) -> str:
    return name if len(name) <= width else "…" + name[1 - width :]


def made_text(step: Step) -> str:
    """Return the types of a step's results."""
    return ", ".join(str(v.type) for v in step.region.outputs)
