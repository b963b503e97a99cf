"""Passes that compute congruent values together: towers, shared inputs, slices."""
