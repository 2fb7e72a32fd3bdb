"""Sums of what clients hold, of which the server sees nothing but the sum."""
