"""A page in a real headless Chromium, at two widths, where one is installed; nothing of it is left behind."""

from __future__ import annotations

import html
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

import pytest

from tests.processes import run_command

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTHS = (360, 1280)
LIMIT = 120.0  # seconds
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


@dataclass(frozen=True)
class Seen:
    """`frames`: what the script has found at each width. `console`: lines of errors and warnings."""

    frames: Sequence[dict[str, Any]]
    console: Sequence[str]


def look_at(page: Path, folder: Path, *options: str) -> Seen:
    """Opens a page. Skips the test where no Chromium is installed."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    text = html.escape(page.read_text("utf-8"))
    frames = "\n".join(
        f'<iframe style="border: 0; width: {width}px; height: 800px" srcdoc="{text}"></iframe>'
        for width in WIDTHS
    )
    around = folder / "around.html"
    around.write_text(_AROUND.format(frames=frames), "utf-8")
    words = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
    ]
    words += ["--disable-background-networking", f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    words += ["--enable-logging=stderr", "--virtual-time-budget=20000", "--window-size=1400,1800", *options]
    result = run_command([*words, around.as_uri()], timeout=LIMIT)
    result.check()
    found = re.search(r'<pre id="findings">(.+?)</pre>', result.stdout, re.DOTALL)
    assert found, result.describe()
    console = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
    return Seen(json.loads(html.unescape(found[1])), console)
