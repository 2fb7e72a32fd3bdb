"""Measurements behind the claims: `python -m benchmarks NAME [--json]` runs `measure` of the module NAME."""
