"""Parts that both code generators use: registers, scalar arithmetic, element types."""
