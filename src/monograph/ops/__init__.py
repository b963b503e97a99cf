"""The canonical op set. Importing this package registers every op.

One class an op, one file a family. `OPS` lists them by name.
"""

import importlib
import pkgutil

from monograph.ir import Op

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

OPS: dict[str, type[Op]] = dict(sorted(Op.registry.items()))
