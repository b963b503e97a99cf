"""Results as tables, JSON, progress bars and traces."""
