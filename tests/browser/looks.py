"""What makes a page readable, measured in the browser."""

from __future__ import annotations

from playwright.sync_api import Page

DRAWN = """() => {
  const plots = [...document.querySelectorAll("[data-figure]")];
  return plots.length > 0 && plots.every((plot) => plot._fullLayout?._size && plot.querySelector(".main-svg"));
}"""

UNREADABLE = """() => {
  const found = [];
  const box = (element) => element.getBoundingClientRect();
  const beside = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1;
  const apart = (a, b) => beside(a, b) || a.bottom <= b.top + 1 || b.bottom <= a.top + 1;
  const inside = (a, b) => a.left > b.left - 1 && a.right < b.right + 1 && a.top > b.top - 1 && a.bottom < b.bottom + 1;
  if (document.documentElement.scrollWidth > innerWidth) found.push("the page is wider than the window");
  for (const plot of document.querySelectorAll("[data-figure]")) {
    const name = plot.dataset.figure, whole = box(plot);
    for (const axis of ["xtick", "ytick"]) {
      const ticks = [...plot.querySelectorAll(`.${axis} text`)].map(box);
      if (ticks.some((tick, at) => at && !apart(tick, ticks[at - 1]))) found.push(`${name}: ${axis} labels overlap`);
    }
    for (const title of plot.querySelectorAll(".xtitle, .ytitle, .legendtext")) {
      if (!inside(box(title), whole)) found.push(`${name}: "${title.textContent}" is cut`);
    }
    const legend = plot.querySelector(".legend"), size = plot._fullLayout._size;
    if (legend && box(legend).bottom > whole.top + size.t + 2) found.push(`${name}: the legend lies over the data`);
    if (size.w < 100 || size.h < 60) found.push(`${name}: the figure is squeezed to ${size.w} x ${size.h}`);
  }
  return found;
}"""

CONTRAST = """() => {
  const light = ([r, g, b]) => {
    const part = [r, g, b].map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
  };
  const colour = (text) => text.match(/[\\d.]+/g).map(Number);
  const paper = light(colour(getComputedStyle(document.body).backgroundColor));
  const named = "p, h1, h2, h3, h4, a, td, th, button, select, figcaption, label, .plot text";
  const texts = document.querySelectorAll(named);
  return Math.min(...[...texts].filter((text) => text.checkVisibility()).map((text) => {
    const style = getComputedStyle(text), inside = text instanceof SVGElement ? style.fill : style.color;
    const own = light(colour(inside));
    return (Math.max(own, paper) + 0.05) / (Math.min(own, paper) + 0.05);
  }));
}"""


def drawn(page: Page) -> None:
    """Scroll through the page and wait until all figures are there."""
    page.wait_for_function("() => document.querySelector('[data-figure]')")
    for plot in page.locator("[data-figure]").all():
        plot.scroll_into_view_if_needed()
    page.wait_for_function(DRAWN)
    page.evaluate("() => scrollTo(0, 0)")


def unreadable(page: Page) -> list[str]:
    """Return what a reader would complain about."""
    return page.evaluate(UNREADABLE)


def contrast(page: Page) -> float:
    """Return the least contrast between text and paper; 4.5 is enough to read."""
    return page.evaluate(CONTRAST)
