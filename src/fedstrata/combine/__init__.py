"""Combiners: how updates become one."""

PARTS = {
    "size": "fedstrata.combine.size:Size",
    "uniform": "fedstrata.combine.uniform:Uniform",
}
