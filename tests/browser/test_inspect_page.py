"""The page of an inspection, opened from a file."""

from __future__ import annotations

import pytest
from looks import contrast, drawn, unreadable
from playwright.sync_api import expect

from fedstrata import inspect

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    """An inspection of 100 clients."""
    path = tmp_path_factory.mktemp("inspection") / "page.html"
    path.write_text(inspect(overrides={"data.clients": 100}).html())
    return f"file://{path}"


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), pytest.param(1440, "light", marks=pytest.mark.extended)])
def test_it_can_be_read(window, address, width, scheme):
    page = window(address, width=width, scheme=scheme)
    drawn(page)
    assert unreadable(page) == []
    assert contrast(page) >= 4.5
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    page.locator("#theme").press("Enter")
    expect(page.locator("html")).to_have_attribute("data-theme", "light" if scheme == "dark" else "dark")
