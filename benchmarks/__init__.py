"""Measurements behind the claims: `python -m benchmarks NAME [--quick] [--json]` runs `measure` of the module NAME."""
