"""What Monograph tells about a model: inspections, comparisons, tables."""
