"""Data sets by name."""

PARTS = {
    "digits": "fedstrata.data.digits:Digits",
    "mnist": "fedstrata.data.mnist:Mnist",
    "fashion-mnist": "fedstrata.data.mnist:FashionMnist",
}
