"""Models of the specification, part E: their sizes, the contract with the engine, what they refuse, and training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedstrata.client.network import Network, find_head
from fedstrata.core import registry
from fedstrata.core.errors import RequestError
from fedstrata.data.federation import Federation
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.testing.tiny import run_rounds

GREY, COLOUR, TINY, PHOTO = (1, 28, 28), (3, 32, 32), (3, 64, 64), (3, 224, 224)
BIG = ("resnet18", "resnet50", "densenet121")
SMALLER = sorted(set(registry.names("models")) - set(BIG))


def architecture(name, **options):
    return registry.build("models", name, options, "model")


def built(name, shape=None, classes=10, **options):
    torch.manual_seed(0)
    part = architecture(name, **options)
    return part.build(shape or part.natural, classes)


def size(module):
    return sum(p.numel() for p in module.parameters())


# ---- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "count"),
    [
        ("lenet5", GREY, 10, {}, 61_706),
        ("lenet5", GREY, 10, {"padding": 0}, 44_426),
        ("lenet5", COLOUR, 10, {}, 62_006),
        ("cnn-mcmahan", GREY, 10, {}, 1_663_370),
        ("cnn-mcmahan", GREY, 62, {}, 1_690_046),
        ("cnn-fedbss", GREY, 10, {}, 1_663_370),
        ("cnn-fedbss", GREY, 10, {"stride": 3}, 352_650),
        ("resnet9", COLOUR, 10, {}, 6_573_130),
        ("resnet9", COLOUR, 100, {}, 6_619_300),
        ("resnet9", COLOUR, 10, {"norm": "gn"}, 6_573_130),
        ("resnet9", COLOUR, 100, {"norm": "gn", "groups": 16}, 6_619_300),
        ("resnet20", COLOUR, 10, {}, 269_722),
        ("resnet18", COLOUR, 10, {}, 11_173_962),
        ("resnet18", COLOUR, 100, {}, 11_220_132),
        ("resnet18", TINY, 200, {}, 11_271_432),
        ("resnet18", TINY, 200, {"stem": "7x7"}, 11_279_112),
        ("resnet50", COLOUR, 10, {}, 23_520_842),
        ("resnet50", COLOUR, 100, {}, 23_705_252),
        ("resnet50", COLOUR, 10, {"stem": "7x7"}, 23_528_522),
        ("densenet121", PHOTO, 7, {}, 6_961_031),
        ("densenet121", PHOTO, 1000, {}, 7_978_856),
        ("cnn-hics-cifar10", COLOUR, 10, {}, 122_570),
        ("cnn-flute-cifar100", COLOUR, 100, {}, 1_075_044),
        ("cnn-hics-fmnist", GREY, 10, {}, 229_709),
        ("ecg-cnn1d", (1, 187), 5, {}, 429_189),
        ("har-mlp", (561,), 6, {}, 80_582),
        ("har-cnn1d", (9, 128), 6, {}, 604_294),
        ("covtype-mlp", (54,), 2, {}, 2_442),
    ],
)
def test_size_as_specified(name, shape, classes, options, count):
    with torch.device("meta"):  # shapes without numbers: nothing is drawn
        assert size(built(name, shape, classes, **options)) == count


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "count"),
    [
        # 54 * 256 + 256, 256 * 256 + 256, 256 * 2 + 2
        ("covtype-mlp", (54,), 2, {"wide": True}, 14_080 + 65_792 + 514),
        # 9 weights a pair of channels and a bias, four times; fc 256; head
        ("cnn-stratify", COLOUR, 10, {}, 896 + 18_496 + 73_856 + 295_168 + 65_792 + 2_570),
        # 3 weights a pair of channels
        ("cnn-stratify", (54,), 2, {}, 128 + 6_208 + 24_704 + 98_560 + 65_792 + 514),
        ("cnn-stratify", (54,), 2, {"norm": "gn"}, 195_906 + 2 * (32 + 64 + 128 + 256)),
        ("har-cnn1d", (6, 128), 6, {}, 604_294 - 3 * 9 * 64),
        ("mlp", GREY, 10, {"hidden": (200, 200)}, 784 * 200 + 200 + 200 * 200 + 200 + 2_010),
        # the 3 x 3 stem saves (49 - 9) * 3 * 64
        ("densenet121", COLOUR, 7, {}, 6_961_031 - 7_680),
        ("densenet121", PHOTO, 7, {"stem": "3x3"}, 6_961_031 - 7_680),
    ],
)
def test_size_by_hand(name, shape, classes, options, count):
    with torch.device("meta"):
        assert size(built(name, shape, classes, **options)) == count


@pytest.mark.parametrize(
    ("shape", "stem", "kernel", "side"),
    [
        (TINY, "auto", 3, 8),
        ((3, 65, 65), "auto", 7, 3),
        ((3, 64, 65), "auto", 7, 2),
        (TINY, "7x7", 7, 2),
        ((3, 96, 96), "3x3", 3, 12),
    ],
)
def test_stem_follows_the_longer_side(shape, stem, kernel, side):
    with torch.device("meta"):
        module = built("resnet18", shape, stem=stem)
        maps = module.stages(module.pool(module.conv1(torch.zeros(1, *shape))))
    assert module.conv1.kernel_size == (kernel, kernel)
    assert maps.shape[:3] == (1, 512, side)


# ---- the contract with the engine ------------------------------------------------------------------------------------

OTHERWISE = [
    ("mlp", (4,), {"hidden": ()}),
    ("lenet5", COLOUR, {}),
    ("cnn-mcmahan", COLOUR, {}),
    ("cnn-mcmahan", (1, 8, 8), {}),
    ("cnn-fedbss", (3, 33, 30), {"stride": 3}),
    ("cnn-hics-cifar10", (1, 28, 18), {}),
    ("cnn-hics-fmnist", (3, 32, 30), {"weights": "xavier"}),
    ("cnn-flute-cifar100", (1, 16, 28), {}),
    ("cnn-stratify", (1, 28, 28), {"norm": "gn", "groups": 8}),
    ("cnn-stratify", (54,), {}),
    ("cnn-stratify", (6, 128), {"norm": "gn"}),
    ("ecg-cnn1d", (187,), {}),
    ("har-cnn1d", (6, 128), {}),
    ("har-mlp", (6, 128), {}),
    ("covtype-mlp", (54,), {"wide": True}),
    ("resnet9", (1, 8, 8), {}),
    ("resnet9", GREY, {"norm": "gn", "groups": 16}),
    ("resnet9", (1, 64, 40), {"norm": "gn"}),
    ("resnet20", GREY, {}),
]


@pytest.mark.parametrize(("name", "shape", "options"), [*((name, None, {}) for name in SMALLER), *OTHERWISE])
def test_contract(name, shape, options):
    shape, classes = shape or architecture(name).natural, 7
    module = built(name, shape, classes, **options)
    x, y = torch.randn(4, *shape), torch.tensor([0, 2, 4, 6])
    assert find_head(module, x, classes) == "head"
    assert isinstance(module.head, nn.Linear)
    network = Network(module, "head").train()
    features, logits = network(x)
    assert features.shape == (4, module.head.in_features)
    assert logits.shape == (4, classes)
    cross_entropy(logits, y).backward()
    for place, p in module.named_parameters():
        assert p.grad is not None, place
        assert torch.isfinite(p.grad).all(), place
    network.eval()
    with torch.no_grad():
        once, again, alone = network(x)[1], network(x)[1], network(x[:1])[1]
    assert torch.equal(once, again)
    assert torch.isfinite(once).all()
    assert torch.allclose(once[:1], alone, atol=1e-4)  # a sample's answer does not depend on its neighbours


@pytest.mark.parametrize(("name", "shape"), [("resnet18", TINY), ("resnet50", COLOUR), ("densenet121", (3, 96, 96))])
def test_contract_of_big_networks(name, shape):
    module = built(name, shape, classes=7)
    x = torch.randn(2, *shape)
    assert find_head(module, x, 7) == "head"
    with torch.no_grad():
        features, logits = Network(module, "head").train()(x)
    assert features.shape == (2, module.head.in_features)
    assert logits.shape == (2, 7)
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize(
    ("name", "blocks"),
    [("resnet9", [1, 2, 1, 2]), ("resnet18", [2, 2, 2, 2]), ("resnet20", [3, 3, 3]), ("resnet50", [3, 4, 6, 3])],
)
def test_residual_networks_show_their_stages(name, blocks):
    with torch.device("meta"):
        assert [len(stage) for stage in built(name).stages] == blocks


def test_norm_layers_are_plain():
    kinds = {"bn": nn.BatchNorm2d, "gn": nn.GroupNorm}
    for norm, kind in kinds.items():
        norms = [m for m in built("resnet9", norm=norm).modules() if isinstance(m, nn.BatchNorm2d | nn.GroupNorm)]
        assert [type(m) for m in norms] == [kind] * 8


def test_group_norm_takes_the_groups_asked_for():
    groups = {m.num_groups for m in built("resnet9", norm="gn", groups=16).modules() if isinstance(m, nn.GroupNorm)}
    assert groups == {16}


def test_option_a_shortcuts_keep_every_second_pixel_and_add_zeros():
    shortcut = built("resnet20").stages[1][0].downsample
    x = torch.randn(2, 16, 5, 4)
    out = shortcut(x)
    assert out.shape == (2, 32, 3, 2)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert out[:, :8].abs().sum() == out[:, 24:].abs().sum() == 0


def test_a_residual_pair_adds_its_input():
    pair = built("resnet9").stages[1][1]
    for layer in (pair.first.conv, pair.second.conv):
        nn.init.zeros_(layer.weight)
    x = torch.randn(2, 128, 4, 4)
    assert torch.equal(pair(x), x)


def test_names_of_resnet18_are_torchvisions_but_for_stages_and_head():
    def block(at, first):
        layers = [f"{at}.conv1.weight", *norm(f"{at}.bn1"), f"{at}.conv2.weight", *norm(f"{at}.bn2")]
        return layers + ([f"{at}.downsample.0.weight", *norm(f"{at}.downsample.1")] if first else [])

    def norm(at):
        return [f"{at}.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]

    theirs = ["conv1.weight", *norm("bn1"), "fc.weight", "fc.bias"]
    for stage in (1, 2, 3, 4):
        theirs += block(f"layer{stage}.0", first=stage > 1) + block(f"layer{stage}.1", first=False)
    for stage in (1, 2, 3, 4):
        theirs = [name.replace(f"layer{stage}.", f"stages.{stage - 1}.") for name in theirs]
    ours = built("resnet18", stem="7x7").state_dict()
    assert set(ours) == {name.replace("fc.", "head.") for name in theirs}
    assert len(ours) == 122


@pytest.mark.parametrize("name", ["cnn-hics-cifar10", "cnn-hics-fmnist"])
def test_xavier_weights(name):
    """Uniform within sqrt(2) * sqrt(6 / (inputs + outputs)): for the hidden layer the bound is reached to 1 %."""
    plain, xavier = built(name), built(name, weights="xavier")
    bound = (2 * 6 / (xavier.fc.in_features + 64)) ** 0.5
    assert 0.99 * bound < xavier.fc.weight.abs().max() <= bound
    assert plain.fc.weight.abs().max() <= xavier.fc.in_features**-0.5  # PyTorch's own bound, which is smaller
    assert xavier.conv2.weight.abs().max() > 1.5 * plain.conv2.weight.abs().max()


def test_dropout_is_where_the_reference_has_it():
    kinds = [type(m).__name__ for m in built("cnn-hics-cifar10").children()]
    assert [kinds[i - 1] for i, kind in enumerate(kinds) if kind == "Dropout"] == ["MaxPool2d", "MaxPool2d", "Conv2d"]
    assert [m.p for m in built("cnn-flute-cifar100").modules() if isinstance(m, nn.Dropout)] == [0.6]


# ---- refusals --------------------------------------------------------------------------------------------------------

IMAGES = ["lenet5", "cnn-mcmahan", "cnn-fedbss", "cnn-hics-cifar10", "cnn-hics-fmnist", "cnn-flute-cifar100"]
IMAGES += ["resnet9", "resnet18", "resnet20", "resnet50", "densenet121"]


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("shape", [(54,), (9, 128), (3, 4, 32, 32)])
def test_what_is_no_image_is_refused(name, shape):
    with pytest.raises(RequestError, match=rf"{name} needs images .*shape \({shape[0]},"):
        built(name, shape)


@pytest.mark.parametrize("name", ["ecg-cnn1d", "har-cnn1d"])
def test_what_is_no_signal_is_refused(name):
    with pytest.raises(RequestError, match=rf"{name} needs signals .*shape \(1, 28, 28\)"):
        built(name, GREY)


@pytest.mark.parametrize(
    ("name", "least", "options"),
    [
        ("cnn-mcmahan", 4, {}),
        ("cnn-fedbss", 9, {"stride": 3}),
        ("cnn-hics-cifar10", 18, {}),
        ("cnn-hics-fmnist", 4, {}),
        ("cnn-flute-cifar100", 16, {}),
        ("cnn-stratify", 16, {}),
        ("resnet9", 8, {}),
        ("densenet121", 8, {}),
        ("densenet121", 29, {"stem": "7x7"}),
    ],
)
def test_the_smallest_image(name, least, options):
    """One pixel less is refused with both numbers; the smallest really goes through."""
    module = built(name, (1, least, least), **options).eval()
    with torch.no_grad():
        assert module(torch.randn(1, 1, least, least)).shape == (1, 10)
    with pytest.raises(RequestError, match=rf"{name} needs images of {least} x {least} .*\(1, {least}, {least - 1}\)"):
        built(name, (1, least, least - 1), **options)


@pytest.mark.parametrize(("name", "least"), [("ecg-cnn1d", 8), ("har-cnn1d", 4), ("cnn-stratify", 16)])
def test_the_shortest_signal(name, least):
    assert built(name, (least,))(torch.randn(2, least)).shape == (2, 10)
    with pytest.raises(RequestError, match=rf"needs signals of {least} values or more; .*\(2, {least - 1}\)"):
        built(name, (2, least - 1))


@pytest.mark.parametrize(("name", "width"), [("resnet9", 64), ("cnn-stratify", 32)])
def test_groups_that_do_not_divide_the_channels_are_refused(name, width):
    with pytest.raises(RequestError, match=rf"model.groups = 24 does not fit: it must divide {width} channels"):
        built(name, norm="gn", groups=24)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("resnet9", {"norm": "ln"}, 'model.norm = "ln" is not valid; allowed: "bn" or "gn"'),
        ("resnet18", {"stem": "5x5"}, 'model.stem = "5x5" is not valid'),
        ("cnn-fedbss", {"stride": 4}, "model.stride = 4 is not valid; allowed: 2 or 3"),
        ("cnn-hics-cifar10", {"dropout": 1.0}, "model.dropout = 1.0 is not valid"),
    ],
)
def test_options_that_do_not_exist_are_refused(name, options, said):
    with pytest.raises(RequestError, match=said):
        architecture(name, **options)


# ---- training --------------------------------------------------------------------------------------------------------


def federation(shape):
    """Two clients with 4 random samples each, of 3 classes."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, *shape)).astype(np.float32), np.array([0, 1, 2, 0, 1, 2, 0, 1])
    return Federation.from_arrays(x, y, [np.arange(4), np.arange(4, 8)], test=(x[:3], y[:3]))


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, {}) for name in SMALLER), ("resnet9", {"norm": "gn"}), ("cnn-stratify", {"norm": "gn"})],
)
def test_one_round(name, options):
    clients = federation(architecture(name).natural)
    asked = {"train.rounds": 1, "train.epochs": 1, "train.batch_size": 4, "train.clients_per_round": "all"}
    asked |= {"train.lr": 0.01, "model.name": name} | {f"model.{key}": value for key, value in options.items()}
    work = build_session(describe_experiment(None, None, asked, clients, None), clients, None)
    before = work.initial_state().model
    after = run_rounds(work, rounds=1)[0].model
    assert torch.isfinite(after.params).all()
    assert torch.isfinite(after.buffers).all()
    assert not torch.equal(before.params[work.plan.space.head], after.params[work.plan.space.head])
    first = work.plan.space.params[0]
    assert not torch.equal(first.of(before.params), first.of(after.params))


@pytest.mark.parametrize("name", ["lenet5", "resnet18"])
def test_grey_images_without_a_channel_are_told_how_to_get_one(name):
    with pytest.raises(RequestError, match=r"samples have shape \(28, 28\); .*: x\[:, None\]"):
        registry.build("models", name, {}, "model").build((28, 28), 10)


def test_channels_that_come_last_are_told_how_to_come_first():
    for channels in (1, 3):
        with pytest.raises(RequestError, match=r"put them first: x.transpose\(0, 3, 1, 2\)"):
            registry.build("models", "lenet5", {}, "model").build((28, 28, channels), 10)
