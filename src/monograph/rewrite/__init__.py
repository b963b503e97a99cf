"""The rewrite engine: patterns written with the ops themselves, rules that say why they decline."""

from monograph.rewrite.cost import CPU_COST, GPU_COST, CostModel, Work, rows_normalised
from monograph.rewrite.engine import (
    Context,
    Reject,
    RewriteLoopError,
    Rule,
    apply_rules,
    rewrite,
    rules_in,
)
from monograph.rewrite.pattern import ANY, Pattern, Var, const, number, variables
from monograph.rewrite.trace import Fired, Missed, Trace

__all__ = [
    "ANY",
    "CPU_COST",
    "GPU_COST",
    "Context",
    "CostModel",
    "Fired",
    "Missed",
    "Pattern",
    "Reject",
    "RewriteLoopError",
    "Rule",
    "Trace",
    "Var",
    "Work",
    "apply_rules",
    "const",
    "number",
    "rewrite",
    "rows_normalised",
    "rules_in",
    "variables",
]
