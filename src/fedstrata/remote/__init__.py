"""The same plan at real sites: `server/` asks, `site/` answers, and neither imports the other.

What both know
    `protocol` and its `protocol_version`; what a site says of its data, `introduction`, and of a report,
    `report_shapes`. Who takes part with which keys: `certificates`, `credentials`, `roll`.
Between them
    `transport` carries requests; over Flower, `flower/`.
"""
