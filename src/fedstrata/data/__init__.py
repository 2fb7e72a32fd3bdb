"""Data sets by name."""

PARTS = {
    "digits": "fedstrata.data.digits:Digits",
    "mnist": "fedstrata.data.mnist:Mnist",
    "fashion-mnist": "fedstrata.data.mnist:FashionMnist",
    "cifar10": "fedstrata.data.cifar:Cifar10",
    "cifar100": "fedstrata.data.cifar:Cifar100",
    "tiny-imagenet": "fedstrata.data.tiny_imagenet:TinyImageNet",
    "ham10000": "fedstrata.data.ham10000:Ham10000",
    "pacs": "fedstrata.data.pacs:Pacs",
    "digits-dg": "fedstrata.data.digits_dg:DigitsDg",
    "domainnet": "fedstrata.data.domainnet:DomainNet",
    "covtype": "fedstrata.data.covtype:Covtype",
    "uci-har": "fedstrata.data.uci_har:UciHar",
    "mit-bih": "fedstrata.data.mit_bih:MitBih",
    "femnist": "fedstrata.data.femnist:Femnist",
    "own": "fedstrata.data.own:Own",
}
