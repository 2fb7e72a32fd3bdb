"""What is asked of a comparison: rows, conditions and their names, from text, TOML and Python; and what is refused."""

from __future__ import annotations

import tomllib

import pytest

from fedstrata import RequestError
from fedstrata.config import tables
from fedstrata.config.tables import write_value
from fedstrata.runs.compare import ComparisonRequest
from fedstrata.runs.compare.control import replaced_stages, side_differences
from fedstrata.runs.compare.design import Design, read_same
from fedstrata.runs.compare.settings import Condition, Entry, folder_name, shorten


def design(source=None, same=(), **asked):
    request = ComparisonRequest.of(**asked)
    return Design(source or {}, {}, request.entries(), request.list_conditions(), [0], read_same(same))


def names(settings):
    return [one.name for one in settings]


# ---- rows ----------------------------------------------------------------------------------------------------------


def test_methods_have_keys_of_their_own_and_are_named_after_them():
    rows = ComparisonRequest.of(
        "fedavg, scaffold(corrections.0.gradients=raw), fedprox(corrections.0.mu=0.1, train.lr=0.05)"
    )
    first, second, third = rows.entries()
    assert (first.name, first.overrides) == ("fedavg", {"method.name": "fedavg"})
    assert second.name == "scaffold(gradients=raw)"
    assert second.overrides == {"method.name": "scaffold", "method.corrections.0.gradients": "raw"}
    assert third.name == "fedprox(mu=0.1, lr=0.05)"
    assert third.overrides["train.lr"] == 0.05


def test_a_variant_is_the_same_from_text_toml_and_python():
    text = "slow: method.name=fedyogi, server_step.lr=0.02"
    toml = tomllib.loads('[[variant]]\nname = "slow"\nmethod.name = "fedyogi"\nmethod.server_step.lr = 0.02')["variant"]
    python = {"slow": {"method.name": "fedyogi", "server_step.lr": 0.02}}
    expected = [Entry("slow", {"method.name": "fedyogi", "method.server_step.lr": 0.02})]
    assert ComparisonRequest.of(variants=[text]).entries() == expected
    assert ComparisonRequest.of(variants=toml).entries() == expected
    assert ComparisonRequest.of(variants=python).entries() == expected


def test_a_table_with_a_kind_is_one_value_and_replaces_the_part():
    own = design(
        {"method": {"selector": {"kind": "flips", "clusters": 4}}}, variants={"o": {"selector": {"kind": "oort"}}}
    )
    assert own.experiments["", "o"].method.selector["kind"] == "oort"
    assert tables.flatten({"a": {"b": {"kind": "x", "y": 1}, "c": 2}}) == {"a.b": {"kind": "x", "y": 1}, "a.c": 2}


def test_names_grow_until_they_tell_rows_apart():
    rows = ComparisonRequest.of(
        variants=[{"method.selector": "oort"}, "train.lr=0.1", "system.speed.sigma=1, system.bandwidth.sigma=1"]
    )
    assert names(rows.entries()) == ["selector=oort", "lr=0.1", "speed.sigma=1, bandwidth.sigma=1"]
    assert shorten(["system.stragglers.rate", "data.name"]) == {
        "system.stragglers.rate": "stragglers",
        "data.name": "data",
    }
    assert write_value([{"kind": "prox", "mu": 0.1}, "clip"]) == "prox 0.1+clip"
    assert write_value([]) == "none"
    assert folder_name("fedprox(mu=0.1)") == "fedprox-mu=0.1"
    assert folder_name("../a: b") == "a-b"
    long = [folder_name("x" * 200 + end) for end in "ab"]
    assert len(set(long)) == 2
    assert max(map(len, long)) < 120


def test_text_is_split_outside_brackets_and_quotes():
    assert tables.split("a(b=1, c=[2, 3]), d='x,y', ,e") == ["a(b=1, c=[2, 3])", "d='x,y'", "e"]


# ---- conditions ----------------------------------------------------------------------------------------------------


def test_conditions_are_all_combinations_and_named_ones_are_an_axis():
    axes = {"data": {"partition": {"alpha": [0.1, 1]}}, "train.clients_per_round": [2, 3]}
    request = ComparisonRequest.of(
        over=axes, conditions=[{"name": "a"}, {"name": "b", "model.name": "lenet5", "train.lr": 0.01}]
    )
    found = request.list_conditions()
    assert len(found) == 8
    assert names(found)[:3] == [
        "a, alpha=0.1, clients_per_round=2",
        "a, alpha=0.1, clients_per_round=3",
        "a, alpha=1, clients_per_round=2",
    ]
    assert found[-1].overrides == {
        "model.name": "lenet5",
        "train.lr": 0.01,
        "data.partition.alpha": 1,
        "train.clients_per_round": 3,
    }
    assert ComparisonRequest.of("fedavg").list_conditions() == [Condition("")]
    text = ComparisonRequest.of(over=["data.partition={kind='iid'},{kind='shards',shards=2}"]).list_conditions()
    assert names(text) == ["partition=iid", "partition=shards 2"]


def test_a_cell_has_what_the_file_its_condition_and_its_row_say_in_that_order():
    source = {"train": {"lr": 0.5, "epochs": 3}, "data": {"partition": {"kind": "dirichlet-class", "alpha": 5}}}
    own = design(
        source,
        methods=["fedavg", "fedprox(train.lr=0.25)"],
        conditions={"even": {"data": {"partition": {"kind": "iid"}}, "train.lr": 0.125}, "as it is": {}},
    )
    own.check()
    at = own.experiments
    assert [at[key].train.lr for key in at] == [0.125, 0.25, 0.5, 0.25]
    assert at["even", "fedavg"].data.partition == {"kind": "iid"}
    assert at["as it is", "fedprox(lr=0.25)"].data.partition["alpha"] == 5
    assert all(one.train.epochs == 3 for one in at.values())
    assert Design.from_json(own.to_json()) == own


def test_tables_of_several_layers_leave_each_other_s_keys_alone():
    own = design(
        {"train": {"rounds": 7}},
        methods=["fedavg"],
        variants={"quick": {"train": {"lr": 0.25}, "data": {"clients": 9}}},
        conditions={"short": {"train": {"rounds": 2}, "data": {"partition": {"alpha": 3}}}},
    )
    whole = own.experiments["short", "quick"]
    assert (whole.train.rounds, whole.train.lr) == (2, 0.25)
    assert (whole.data.clients, whole.data.partition["alpha"]) == (9, 3)


def test_options_go_over_the_table_of_a_file():
    file = ComparisonRequest.from_table(
        {
            "methods": ["fedavg"],
            "seeds": 3,
            "over": {"train": {"lr": [1, 2]}},
            "variant": [{"name": "v", "train": {"epochs": 1}}],
            "condition": [{"name": "a"}, {"name": "b", "train": {"lr": 1}}],
        }
    )
    both = ComparisonRequest.of(
        "sfl", variants=["w: train.epochs=2"], over=["train.lr=3,4"], conditions=["b: model.name=mlp"]
    ).on_top_of(file)
    assert names(both.entries()) == ["sfl", "v", "w"]
    assert both.over == {"train.lr": [3, 4]}
    assert both.seeds == 3
    assert names(both.conditions) == ["a", "b"]
    assert both.conditions[1].overrides == {"model.name": "mlp"}


# ---- control -------------------------------------------------------------------------------------------------------


def test_weights_and_suggested_settings_that_differ_are_remarked_unless_they_were_asked_for():
    own = design(methods="fedavg,fedbss,fedprox,scaffold,stratify-batch")
    weights, suggested = side_differences(own)
    assert weights.startswith("fedbss, scaffold against fedavg: updates are weighed all alike, not by their samples")
    assert "--same combiner" in weights
    assert suggested.startswith(
        "stratify-batch against fedavg: the recipe suggests train.batch_size = 64, train.lr = 0.05"
    )
    asked = design(
        methods="fedavg,fedbss(combiner=uniform),stratify-batch(train.lr=0.05,train.batch_size=64,train.optimizer=sgd)"
    )
    assert side_differences(asked) == []
    alone = design(methods="fedavg,fedavg(combiner=uniform)")
    assert side_differences(alone) == [], "a row that is about its weights"


def test_rows_whose_own_stages_the_experiment_replaces_are_named():
    source = {"method": {"server_step": "yogi", "combiner": "size"}}
    own = design(source, methods="fedavg,fedprox,fedyogi,scaffold,fedbss(combiner=uniform),strata")
    assert replaced_stages(own) == [
        "scaffold runs with the experiment's combiner, not with its own",
        "strata runs with the experiment's combiner, server_step, whatever it would choose",
    ]
    assert replaced_stages(design(methods="fedavg,scaffold,strata")) == []
    assert replaced_stages(design(methods="fedavg,scaffold", same=["combiner"])) == [], "it was asked for"
    assert replaced_stages(design({"method": {"server_step": {"lr": 0.1}}}, methods="fedavg,fedyogi")) == []
    assert replaced_stages(design(source, over=["train.lr=1,2"], variants=["as it is:"])) == [], "it is its own"


def test_same_gives_all_rows_what_the_first_has():
    own = design(methods="fedavg,fedbss,scaffold,stratify-batch", same=["combiner", "train.lr"])
    own.check()
    assert {one.method.combiner["kind"] for one in own.experiments.values()} == {"size"}
    assert {one.train.lr for one in own.experiments.values()} == {0.1}
    assert own.experiments["", "fedbss"].method.sampler["kind"] == "bias-aware"


# ---- refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"methods": "fedavg,fedavg"}, "a method is named twice: fedavg"),
        ({"methods": "fedprox(corrections.0.mu=1),fedprox(corrections.0.mu=1)"}, "named twice"),
        ({"methods": "fedprox,fedprox(corrections.0.mu=0.01)"}, "fedprox and fedprox(mu=0.01) are the same here"),
        ({"methods": "fedavg", "variants": {"fedavg": {"train.lr": 1}}}, "give them names that tell them apart"),
        ({"methods": "fedavg(a=1)"}, 'fedavg(a=1) = "a" is unknown'),
        ({"methods": "fedavg(lr=1)"}, 'fedavg(lr=1) = "lr" is unknown (did you mean train.lr?)'),
        ({"methods": "fedavg", "over": {"alpha": [1, 2]}}, 'over = "alpha" is unknown (did you mean data.partition.'),
        ({"methods": "fedavg(train.lr=1"}, "no closing bracket"),
        ({"methods": "fedavg(train.lr=1,train.lr=2)"}, "sets train.lr twice"),
        ({"methods": "fedavg(train.lrr=1)"}, "fedavg(lrr=1): train.lrr is not an option"),
        ({"methods": "fedavg", "variants": ["x: data.clients=4"]}, "x sets data.clients: rows of a comparison share"),
        ({"methods": "fedavg,sfl(train.seed=4)"}, "sfl(seed=4) sets train.seed"),
        ({"methods": "fedavg", "variants": [{}]}, "a variant sets nothing"),
        ({"methods": "fedavg", "variants": ["slow"]}, "must look like"),
        ({"methods": "fedavg", "variants": [3]}, "must be a table"),
        ({"methods": "fedavg", "over": {"train.lr": 0.1}}, "over: train.lr = 0.1 must be a list"),
        ({"methods": "fedavg", "over": ["train.lr="]}, "must look like"),
        ({"methods": "fedavg", "over": ["trian.lr=1,2"]}, 'over = "trian.lr" is unknown'),
        ({"methods": "fedavg", "over": ["train.lr=1,1"]}, "a condition is named twice: lr=1"),
        ({"methods": "fedavg", "over": ["train.lr=1,-1"]}, "lr=-1: train.lr = -1 is not valid"),
        (
            {"methods": "fedavg", "over": ["train.lr=1,2"], "conditions": ["a: train.lr=1"]},
            "condition a sets train.lr, and over",
        ),
        ({"methods": "fedavg", "conditions": ["a: train.epochs=2", "b:"]}, "conditions a and b are the same"),
        (
            {"methods": "fedavg", "conditions": ["a: method.name=sfl"]},
            "condition a sets method.name, which the row fedavg",
        ),
        ({"methods": "fedavg", "conditions": ["a b: train.lr=1", "a-b: train.lr=2"]}, "would lie in one folder"),
        ({"methods": "fedavg,sfl", "same": ["driver"]}, "fedavg and sfl are the same here"),
        (
            {"methods": "fedavg,sfl(train.lr=1)", "same": ["train.lr"]},
            "same = train.lr: the row sfl(lr=1) sets it itself",
        ),
        ({"methods": "fedavg,sfl", "same": ["combine"]}, 'same = "combine" is unknown (did you mean "combiner"?)'),
        ({"methods": "fedavg,sfl", "same": ["data.clients"]}, "name a stage"),
        ({"methods": "fedavg", "seeds": 0}, "seeds = 0 must be at least 1"),
        ({"methods": "fedavg", "seeds": [1, 2]}, "it says how many seeds, such as 5, and train.seed says the first"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(asked, said):
    with pytest.raises(RequestError) as refused:
        design(**asked).check()
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"method": ["fedavg"]}, 'compare.method is not an option (did you mean "methods"?)'),
        ({"methods": 3}, "compare: methods = 3 must be a list of names"),
        ({"seeds": "many"}, "compare: seeds = many must be at least 1"),
        ({"budget": 3}, "compare: budget = 3 must be a text"),
        (["fedavg"], "must be a table"),
    ],
)
def test_a_wrong_table_of_a_file_is_refused_by_key(table, said):
    with pytest.raises(RequestError) as refused:
        ComparisonRequest.from_table(table)
    assert said in str(refused.value)
