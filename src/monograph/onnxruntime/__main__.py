"""Runs a program with Monograph in the place of onnxruntime.

python -m monograph.onnxruntime -m PACKAGE ARGUMENTS...
python -m monograph.onnxruntime PROGRAM.py ARGUMENTS...
"""

from __future__ import annotations

import os
import runpy
import sys

from monograph.onnxruntime.replace import replace_onnxruntime

USAGE = "usage: python -m monograph.onnxruntime [-m MODULE | -c CODE | PROGRAM.py] ARGUMENTS..."


def main(arguments: list[str]) -> None:
    """Run the module or the file that the arguments name, as Python itself would."""
    kind = arguments[0] if arguments[:1] in (["-m"], ["-c"]) else ""
    rest = arguments[1:] if kind else arguments
    if not rest or rest[0] in ("-h", "--help"):
        print(USAGE)
        sys.exit(0 if rest else 2)
    replace_onnxruntime()
    sys.argv = [kind or rest[0], *rest[1:]]
    if kind == "-m":
        # `python -m` has put the current directory there already.
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(rest[0]))
        runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
