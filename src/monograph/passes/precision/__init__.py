"""The pass that converts f32 to f16 or bf16: range bounds, op rules, the plan."""
