"""Documents say what is there: links, names, excerpts and keys are those of the code."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

import fedstrata
from fedstrata.config.experiment import Experiment
from fedstrata.config.sections import Section
from fedstrata.core import registry
from fedstrata.remote.site.policy.rules import SitePolicy, read_policy

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedstrata"
PAGES = sorted(
    [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs/tutorials").glob("*.md"),
        *(ROOT / "examples").glob("**/*.md"),
    ]
)
SHIPPED = sorted([*ROOT.glob("*.md"), *PACKAGE.glob("**/*.md")])  # what a reader of the code, or a site, gets to see
ROUND = ROOT / "docs" / "a-round.md"
WIDEST = 120

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^( *)```(\w*)(?: [^\n]+)?\n(.*?)^ *```$", re.M | re.S)
NAMED = re.compile(r"(?:\[`([\w/]+\.py)`\]\([^)]+\)|`([\w/]+\.py)`)\s+`([A-Za-z_][\w.]*)`")  # a file, then a name in it

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return FENCE.sub("", page.read_text())


def blocks(page: Path, language: str) -> list[str]:
    """Return a page's blocks of code in a language."""
    return [code for _, named, code in FENCE.findall(page.read_text()) if named == language]


# ---- every page


@by_page
def test_linked_files_exist(page):
    for link in LINK.findall(prose(page)):
        if "://" not in link and not link.startswith(("#", "mailto:")):
            assert (page.parent / link.partition("#")[0]).exists(), link


@by_page
def test_named_files_exist(page):
    for path in re.findall(r"`((?:src|docs|examples|tests|benchmarks|studies)/[\w./-]+)`", page.read_text()):
        assert (ROOT / path).exists(), path
    if page.parent.name == "tutorials":
        return  # their `runs/` is the reader's
    rooms = "|".join(path.name for path in PACKAGE.iterdir() if path.is_dir())
    for path in re.findall(rf"`((?:{rooms})/[\w./-]*)`", prose(page)):
        assert (PACKAGE / path).exists() or (ROOT / path).exists(), path


@pytest.mark.parametrize("page", sorted({*PAGES, *SHIPPED}), ids=lambda page: f"{page.parent.name}/{page.name}")
def test_lines_are_short_outside_tables(page):
    long = [i for i, line in enumerate(page.read_text().splitlines(), 1) if len(line) > WIDEST and line[:1] != "|"]
    assert not long, f"{page.name}, lines {long}"


@by_page
def test_code_takes_public_names_from_the_package_itself(page):
    for code in blocks(page, "python"):
        for name in re.findall(r"\bfedstrata\.(\w+)", re.sub(r"^from .*", "", code, flags=re.M)):
            assert name in dir(fedstrata), name
        for module, names in re.findall(r"^from (fedstrata[\w.]*) import (.+)", code, re.M):
            if module != "fedstrata.flower_strategy":  # needs Flower, which is not there everywhere
                assert module == "fedstrata", module
                assert not [n for n in re.findall(r"\w+", names) if n not in dir(fedstrata)]


@by_page
def test_experiments_in_toml_are_valid(page):
    if page.name == "adding.md":
        return  # tests/testing/test_adding_doc.py runs its examples, with the parts that they name
    for code in blocks(page, "toml"):
        Experiment.of(tomllib.loads(code))


# ---- keys of an experiment


def keys(section: type[Section], prefix: str = "") -> Iterator[tuple[str, type[Section], str]]:
    """Go through a schema: each key with dots, the section it is in, and its own name."""
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}", section, name
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, Section):
                yield from keys(inner, f"{prefix}{name}.")


ALL_KEYS = {key for key, _, _ in keys(Experiment)}
TABLES = {key.rpartition(".")[0] for key in ALL_KEYS if "." in key} - {"data", "model"}  # these take options beside
SHORT = {"data.drift", "data.stream"}  # documented as one table each


def test_every_key_of_an_experiment_is_documented_and_no_other():
    text = (ROOT / "docs" / "experiment.md").read_text()
    rows = text[text.index("| key |") :].split("\n\n")[0].splitlines()[2:]
    documented = {key for row in rows for key in re.findall(r"`([\w.]+)`", row.split("|")[1])}
    leaves = {key for key in ALL_KEYS if key not in TABLES and key.rpartition(".")[0] not in SHORT} | SHORT
    assert documented == leaves - {"data", "model"}


PARTS = {  # keys whose value is a part, or has options of one beside its own keys
    "data": "datasets",
    "data.partition": "partitions",
    "model": "models",
    "method.schedule": "schedules",
    "method.driver": "drivers",
    "method.selector": "selectors",
    "method.sampler": "samplers",
    "method.corrections": "corrections",
    "method.combiner": "combiners",
    "method.server_step": "server_steps",
    "train.optimizer": "optimizers",
    "train.lr_schedule": "lr_schedules",
    "train.evaluate.metrics": "metrics",
    "track": "trackers",
    "engine": "engines",
}


def known(key: str) -> bool:
    """Say whether a key with dots could be set: a key of the schema, or an option of some part behind one."""
    key = re.sub(r"\.\d+(?=\.|$)", "", key)  # an element of a list
    if key in ALL_KEYS or key in ("data.noise.labels", "data.noise.features"):
        return True
    stage, _, option = key.rpartition(".")
    kind = PARTS.get(stage, "")
    return (
        any(option in {*registry.options(kind, name, ""), "kind"} for name in registry.names(kind)) if kind else False
    )


KEY = re.compile(
    r"(?<![\w./])(?:data|model|method|train|system|privacy|trust|engine)\.[a-z_0-9]+(?:\.[a-z_0-9]+)*(?![\w(/])"
)
FILES = (".py", ".md", ".json", ".toml", ".safetensors", ".csv", ".npz")


@by_page
def test_keys_that_documents_name_exist(page):
    quoted = [text for code in blocks(page, "python") for text in re.findall(r'"([^"\n]+)"', code)]
    other = [code for _, language, code in FENCE.findall(page.read_text()) if language != "python"]
    texts = [*quoted, *other, *re.findall(r"`([^`\n]+)`", prose(page))]
    named = {key for text in texts for key in KEY.findall(text) if not key.endswith(FILES)}
    assert not [key for key in sorted(named) if not known(key)]


@pytest.mark.parametrize(("key", "kind"), [item for item in PARTS.items() if item[0].startswith(("method", "tra"))])
def test_every_option_of_a_part_is_documented_in_the_table_of_its_key(key, kind):
    text = (ROOT / "docs" / "experiment.md").read_text()
    if key == "method.schedule":  # one part with options, which have a table of their own
        table = text[text.index("## A schedule of labels") :]
        assert not [option for option in registry.options(kind, "stratified", key) if f"`{option}`" not in table]
        return
    title = re.search(rf"^\| `{key}` \| (option )?\|", text, re.M)
    assert title, key
    rows = [row.split("|") for row in text[title.start() :].split("\n\n")[0].splitlines()[2:]]
    for name in registry.names(kind):
        told = " ".join(row[2] for row in rows if f"`{name}`" in row[1])
        assert told, name
        assert not [option for option in registry.options(kind, name, key) if f"`{option}`" not in told], name


def test_the_page_of_concepts_names_every_method_and_every_part_of_a_stage():
    text = (ROOT / "docs" / "concepts.md").read_text()
    named = text[text.index("Named methods:") :].partition("\n\n")[0]
    methods = set(re.findall(r"[\w-]+", named))
    assert set(registry.names("methods")) <= methods
    for key, kind in PARTS.items():
        if key.startswith("method."):
            row = next(line for line in text.splitlines() if line.startswith(f"| `{key.removeprefix('method.')}` |"))
            assert not [name for name in registry.names(kind) if f"`{name}`" not in row], kind


POLICY = ROOT / "examples" / "site.toml"


@pytest.mark.parametrize("path", sorted({*(ROOT / "examples").glob("*.toml")} - {POLICY}), ids=lambda path: path.name)
def test_example_experiments_are_valid(path):
    Experiment.of(path)


def test_every_key_of_a_site_s_policy_is_documented_and_in_the_example():
    rules, text = read_policy(POLICY), POLICY.read_text()
    assert rules.import_paths == frozenset()
    page = (ROOT / "docs" / "policy.md").read_text()
    rows = page[page.index("| key |") :].split("\n\n")[0].splitlines()[2:]
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    names = {name for key, _, name in keys(SitePolicy) if key not in ("privacy", "limits", "resources")}
    assert documented == names
    assert set(re.findall(r"^(?:# )?(\w+) = ", text, re.M)) == names


# ---- one round, line by line


@cache
def defined(path: Path) -> frozenset[str]:
    """Return the functions and classes of a file, methods as `Class.name` and as `name`."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
            names |= inner | {f"{node.name}.{name}" for name in inner}
    return frozenset(names)


def test_names_on_the_page_of_a_round_are_in_the_files_that_it_names():
    found = NAMED.findall(prose(ROUND))
    assert len(found) > 40
    for linked, plain, name in found:
        path = PACKAGE / (linked or plain)
        assert path.exists(), path
        assert name in defined(path), f"{linked or plain} has no {name}"


def test_links_on_the_page_of_a_round_lead_to_the_file_that_they_say():
    for text, target in re.findall(r"\[`([\w/]+\.py)`\]\(([^)]+)\)", ROUND.read_text()):
        assert (ROUND.parent / target).resolve() == PACKAGE / text


def test_methods_on_the_page_of_a_round_exist_where_no_file_is_named():
    everything = frozenset().union(*(defined(path) for path in PACKAGE.rglob("*.py")))
    for name in re.findall(r"`([A-Z]\w+\.[a-z]\w+)`", prose(ROUND)):
        assert name in everything, name


def squeezed(code: str) -> str:
    return re.sub(r"\s+", "", code)


def test_excerpts_on_the_page_of_a_round_occur_in_one_of_its_files_in_that_order():
    files = [PACKAGE / path for path in dict.fromkeys(re.findall(r"`([\w/]+\.py)`", ROUND.read_text()))]
    sources = [squeezed(path.read_text()) for path in files if path.exists()]
    excerpts = blocks(ROUND, "python")
    assert len(excerpts) > 8
    for code in excerpts:
        pieces = [squeezed(piece) for piece in re.split(r"^ *\.\.\.$", code, flags=re.M)]
        pattern = re.compile(".*?".join(map(re.escape, pieces)))
        assert any(pattern.search(source) for source in sources), code
