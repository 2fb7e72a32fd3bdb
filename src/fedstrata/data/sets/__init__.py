"""Data sets by name."""

PARTS = {
    "digits": "fedstrata.data.sets.digits:Digits",
    "mnist": "fedstrata.data.sets.mnist:Mnist",
    "fashion-mnist": "fedstrata.data.sets.mnist:FashionMnist",
    "cifar10": "fedstrata.data.sets.cifar:Cifar10",
    "cifar100": "fedstrata.data.sets.cifar:Cifar100",
    "tiny-imagenet": "fedstrata.data.sets.tiny_imagenet:TinyImageNet",
    "ham10000": "fedstrata.data.sets.ham10000:Ham10000",
    "pacs": "fedstrata.data.sets.pacs:Pacs",
    "digits-dg": "fedstrata.data.sets.digits_dg:DigitsDg",
    "domainnet": "fedstrata.data.sets.domainnet:DomainNet",
    "covtype": "fedstrata.data.sets.covtype:Covtype",
    "uci-har": "fedstrata.data.sets.uci_har:UciHar",
    "mit-bih": "fedstrata.data.sets.mit_bih:MitBih",
    "femnist": "fedstrata.data.sets.femnist:Femnist",
    "hf": "fedstrata.data.sets.hugging_face:HuggingFace",
    "own": "fedstrata.data.sets.own:Own",
}
