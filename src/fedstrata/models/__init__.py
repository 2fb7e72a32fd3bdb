"""Models by name, one file a family."""

PARTS = {
    "mlp": "fedstrata.models.mlp:Mlp",
    "har-mlp": "fedstrata.models.mlp:HarMlp",
    "covtype-mlp": "fedstrata.models.mlp:CovtypeMlp",
    "lenet5": "fedstrata.models.lenet5:LeNet5",
    "cnn-mcmahan": "fedstrata.models.cnn_mcmahan:CnnMcmahan",
    "cnn-fedbss": "fedstrata.models.cnn_mcmahan:CnnFedbss",
    "cnn-hics-cifar10": "fedstrata.models.cnn_hics:CnnHicsCifar10",
    "cnn-hics-fmnist": "fedstrata.models.cnn_hics:CnnHicsFmnist",
    "cnn-flute-cifar100": "fedstrata.models.cnn_flute:CnnFluteCifar100",
    "cnn-stratify": "fedstrata.models.cnn_stratify:CnnStratify",
    "ecg-cnn1d": "fedstrata.models.cnn1d:EcgCnn1d",
    "har-cnn1d": "fedstrata.models.cnn1d:HarCnn1d",
    "resnet9": "fedstrata.models.resnet9:ResNet9",
    "resnet18": "fedstrata.models.resnet:ResNet18",
    "resnet20": "fedstrata.models.resnet20:ResNet20",
    "resnet50": "fedstrata.models.resnet:ResNet50",
    "densenet121": "fedstrata.models.densenet:DenseNet121",
    "timm": "fedstrata.models.timm:Timm",
}
