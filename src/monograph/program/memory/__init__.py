"""Buffer assignment, the memory planner, in-place updates, stream schedules."""
