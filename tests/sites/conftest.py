from __future__ import annotations

from importlib.util import find_spec

import pytest
from staging import Federation

STARTED: list[Federation] = []


@pytest.fixture(scope="session")
def federation(tmp_path_factory):
    """One for all tests, because starting it takes longest."""
    if find_spec("flwr") is None:
        pytest.skip("needs fedstrata[flower]")
    folder = tmp_path_factory.mktemp("federation")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSTRATA_STATE", str(folder / "state"))
        patch.setenv("FEDSTRATA_WISHES", str(folder / "wishes"))
        here = Federation(folder)
        STARTED.append(here)
        try:
            here.start()
            yield here
        finally:
            here.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Show the logs where a test fails."""
    report = (yield).get_result()
    if report.failed and STARTED:
        report.sections.append(("the federation", STARTED[0].everything()))
