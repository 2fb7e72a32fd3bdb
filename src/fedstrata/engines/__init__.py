"""Engines: where client updates happen."""

PARTS = {
    "local": "fedstrata.engines.local.engine:LocalEngineOptions",
}
