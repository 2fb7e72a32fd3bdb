"""The round loop, evaluation, metrics, stopping rules, the participation log."""
