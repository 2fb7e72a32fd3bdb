"""From an experiment file to a plan."""
