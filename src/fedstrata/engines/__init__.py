"""Engines: where client updates happen."""

PARTS = {
    "local": "fedstrata.engines.local.start:LocalEngineOptions",
    "ray": "fedstrata.engines.ray.start:RayEngineOptions",
}
