"""The CPU target: code generation, and the runtime under it."""
