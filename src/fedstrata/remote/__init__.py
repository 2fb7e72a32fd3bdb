"""The same plan at real sites."""
