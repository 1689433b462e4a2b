"""Pages as their parsers read them, and in a real headless Chromium, where one is installed, at two widths;
nothing of it is left behind."""

from __future__ import annotations

import html
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Sequence

import pytest

from tests.processes import run_command

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTHS = (360, 1280)
LIMIT = 120.0  # seconds
VOID = {"meta", "br", "img", "link", "input"}
LOADING = {"link", "iframe", "object"}
# Each frame has the page as its document, of the same origin as this one, whose script looks into it.
_AROUND = """<!DOCTYPE html><meta charset="utf-8"><body>
{frames}
<pre id="findings"></pre>
<script>
const look = frame => {{
  const page = frame.contentDocument, root = page.documentElement;
  const visible = each => {{ const box = each.getBoundingClientRect(); return box.width + box.height > 0; }};
  const columns = [];
  const table = page.querySelector('table');
  table.querySelectorAll('th button').forEach((button, place) => {{
    const read = () => Array.from(table.tBodies[0].rows, row => row.cells[place]?.textContent ?? null);
    const found = [read()];
    for (let click = 0; click < 2; click++) {{
      button.click();
      found.push(button.parentElement.getAttribute('aria-sort'), read());
    }}
    columns.push(found);
  }});
  const links = Array.from(page.querySelectorAll('td a[href^="#"]'));
  if (links.length) {{ frame.contentWindow.location.hash = links[0].getAttribute('href'); }}
  return {{
    width: frame.contentWindow.innerWidth,
    overflow: root.scrollWidth - root.clientWidth,
    marks: Array.from(page.querySelectorAll('svg'), svg => Array.from(svg.querySelectorAll('[clip-path]'))
      .filter(each => !each.closest('[id*="matplotlib.axis"]') && visible(each)).length),
    colour: frame.contentWindow.getComputedStyle(page.body).color,
    focusable: Array.from(table.querySelectorAll('th button')).every(each => each.tabIndex === 0),
    columns, links: links.length,
  }};
}};
addEventListener('load', () => {{
  const frames = Array.from(document.querySelectorAll('iframe'));
  const found = frames.map(look);
  setTimeout(() => {{
    frames.forEach((frame, index) => found[index].opened =
      Array.from(frame.contentDocument.querySelectorAll('details[open]')).length);
    document.getElementById('findings').textContent = JSON.stringify(found);
  }}, 200);
}});
</script>
"""


class Checked(HTMLParser):
    """Reads a page: every element closed in its order, ids once, nothing loaded."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.scripts = 0
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == [] and len(set(self.ids)) == len(self.ids)

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        self.handle_startendtag(tag, attrs)

    def handle_startendtag(self, tag, attrs):
        values = dict(attrs)
        assert not {"src", "srcset", "data", "action"} & set(values) and tag not in LOADING
        assert not any(name.startswith("on") for name in values)
        self.scripts += tag == "script"
        if "id" in values:
            self.ids.append(values["id"])
        for name in ("href", "xlink:href"):
            if name in values:
                assert tag == "a" or values[name].startswith("#")
                self.links.append(values[name])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            assert "@import" not in data and "url(" not in data
        self.text += data


def checked(text: str) -> Checked:
    """A page that is whole, whose plots are XML, and whose links inside lead somewhere."""
    found = Checked(text)
    assert found.scripts == 1
    for svg in text.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + svg.partition("</svg>")[0] + "</svg>")
    for link in found.links:
        assert link.startswith("http") or link[1:] in found.ids
    return found


def samples_behind(text: str) -> list[tuple[str, list[list[str]]]]:
    """Every verdict of a page and the cells of the rows that it leads to."""
    found = []
    for anchor, verdict in re.findall(r'<a href="#(samples-\d+)">([^<]*)</a>', text):
        (section,) = re.findall(rf'<section id="{anchor}">(.*?)</section>', text, re.DOTALL)
        rows = re.findall(r"<tr>((?:<td.*?</td>)+)</tr>", section)
        cells = [[html.unescape(cell) for cell in re.findall("<td[^>]*>([^<]*)</td>", row)] for row in rows]
        found.append((html.unescape(verdict), cells))
    return found


@dataclass(frozen=True)
class Seen:
    """`frames`: what the script has found at each width. `console`: lines of errors and warnings."""

    frames: Sequence[dict[str, Any]]
    console: Sequence[str]


def look_at(page: Path, folder: Path, *options: str) -> Seen:
    """Opens a page. Skips the test where no Chromium is installed."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no Chromium: none of {', '.join(BROWSERS)} is installed")
    text = html.escape(page.read_text("utf-8"))
    frames = "\n".join(
        f'<iframe style="border: 0; width: {width}px; height: 800px" srcdoc="{text}"></iframe>'
        for width in WIDTHS
    )
    around = folder / "around.html"
    around.write_text(_AROUND.format(frames=frames), "utf-8")
    words = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    words += ["--no-first-run", "--disable-background-networking", "--dump-dom", "--enable-logging=stderr"]
    words += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=20000"]
    words += ["--window-size=1400,1800", *options]
    result = run_command([*words, around.as_uri()], timeout=LIMIT)
    result.check()
    found = re.search(r'<pre id="findings">(.+?)</pre>', result.stdout, re.DOTALL)
    assert found, result.describe()
    console = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
    return Seen(json.loads(html.unescape(found[1])), console)
