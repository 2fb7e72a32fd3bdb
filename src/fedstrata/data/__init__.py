"""Data sets by name."""

PARTS = {
    "digits": "fedstrata.data.digits:Digits",
}
