"""Engines: where visits happen."""

PARTS = {
    "local": "fedstrata.engines.local.engine:OnThisMachine",
}
