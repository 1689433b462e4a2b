"""A report as one HTML file that loads nothing: the paragraphs, tables and plots of its Markdown; tables that
sort, verdicts that lead to their samples, light and dark."""

from __future__ import annotations

import base64
import hashlib
import itertools
import math
import re
from html import escape
from typing import Iterator, Mapping, Sequence

from base.tables import Table

_STYLE = """\
:root { color-scheme: light dark; --back: #f4f5f6; --card: #ffffff; --ink: #1d2126; --soft: #5a626b;
  --line: #d9dde1; --link: #0058a3; --alarm: #b34700; --hit: #fff3cf; --band: #dddddd }
@media (prefers-color-scheme: dark) { :root { --back: #14171a; --card: #1c2024; --ink: #e3e6e9;
  --soft: #a0a8b0; --line: #383f46; --link: #7cbcf5; --alarm: #ff9a57; --hit: #4a3d12;
  --band: #4a525b } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 76rem; padding: 1rem clamp(.75rem, 3vw, 2.5rem) 4rem;
  background: var(--back); color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
h1, h2, h3 { line-height: 1.25; text-wrap: balance }
h1 { font-size: 1.7rem }
h2 { font-size: 1.3rem; margin: 2.5rem 0 .75rem; padding-top: .75rem; border-top: 1px solid var(--line) }
h3 { font-size: 1.05rem; margin: 1.75rem 0 .5rem }
p, li { max-width: 80ch }
ul { padding-left: 1.25rem }
a { color: var(--link) }
.note { color: var(--soft); font-size: .9rem; margin: .5rem 0 }
.box { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 6px }
pre { padding: .75rem; font-size: .85rem; line-height: 1.45; overflow-wrap: normal }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums;
  overflow-wrap: normal }
th, td { padding: .35rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line) }
tr:last-child td { border-bottom: 0 }
tbody tr:hover { background: var(--back) }
.name { text-align: left }
.remark { text-align: left; font-style: italic }
.remark, .long { white-space: normal; min-width: 22rem; overflow-wrap: anywhere }
th { padding: 0; vertical-align: bottom }
th button { all: unset; box-sizing: border-box; width: 100%; padding: .45rem .7rem; cursor: pointer;
  font-weight: 600; white-space: normal; min-width: 5rem }
th button:focus-visible, .box:focus-visible { outline: 2px solid var(--link); outline-offset: -2px }
th button::before { content: var(--mark, "\\2195") "\\a0"; color: var(--soft) }
th.name button::before { content: none }
th.name button::after { content: "\\a0" var(--mark, "\\2195"); color: var(--soft) }
th[aria-sort=ascending] { --mark: "\\2191" }
th[aria-sort=descending] { --mark: "\\2193" }
figure { margin: 1rem 0 }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .35rem }
svg { display: block; width: 100%; height: auto; margin: auto }
svg * { stroke-linejoin: round; stroke-linecap: butt }
svg text { fill: currentColor }
details { margin: .75rem 0 }
summary { cursor: pointer; color: var(--link) }
details section { max-width: 44rem }
section:target h3 { background: var(--hit) }
@media (max-width: 40rem) { th button, td { padding: .3rem .45rem } th button { min-width: 0 } }
"""
# Numbers first, by value; then words; then what is missing, also in falling order.
_SCRIPT = """
const empty = ['', '\u2013'];
const missing = cell => !cell || cell.className === 'remark' || empty.includes(cell.textContent);
const key = cell => missing(cell) ? [2, 0]
  : 'v' in cell.dataset ? [0, Number(cell.dataset.v)] : [1, cell.textContent];
document.querySelectorAll('th button').forEach(button => button.addEventListener('click', () => {
  const head = button.parentElement, body = head.closest('table').tBodies[0];
  const falls = head.getAttribute('aria-sort') === 'ascending', place = head.cellIndex;
  for (const each of head.parentElement.cells) each.setAttribute('aria-sort', 'none');
  head.setAttribute('aria-sort', falls ? 'descending' : 'ascending');
  const rows = Array.from(body.rows, row => [key(row.cells[place]), row]);
  rows.sort(([[a, x]], [[b, y]]) => a - b || (falls ? -1 : 1) *
    (a === 1 ? x.localeCompare(y, 'en', { numeric: true }) : x - y));
  body.append(...rows.map(([, row]) => row));
}));
const show = () => {
  const found = document.getElementById(location.hash.slice(1));
  for (let each = found; each; each = each.parentElement) if (each.tagName === 'DETAILS') each.open = true;
  if (found) found.scrollIntoView();
};
addEventListener('hashchange', show);
show();
"""
_LONG = 60  # characters of a name that goes over several lines
_UNITS = {
    **{"kB": 1e3, "KB": 2**10, "MB": 1e6, "GB": 1e9, "MiB": 2**20, "GiB": 2**30},
    **{"ms": 1e-3, "s": 1, "min": 60, "h": 3600, "day": 86400, "days": 86400, "years": 365.25 * 86400},
}
_UNIT = rf"\s?({'|'.join(_UNITS)})\b"
_VALUE = re.compile(rf"[~<+]?\s?([-−]?[\d,]*\.?\d+(?:e[-+]?\d+)?)(?:{_UNIT}(?:\s(\d+){_UNIT})?)?(?=$|[\s%(])")
_MARKS = re.compile(
    r"`(?P<code>[^`]+)`|\*\*(?P<bold>.+?)\*\*|\[(?P<text>[^\]]+)\]\((?P<link>https?://[^)\s]+)\)"
    r"|(?P<url>https?://(?:[^\s;,)<&]|&amp;)*[^\s;,)<&.:])"
)


def page(document: Sequence[str | Table], plots: Mapping[str, str]) -> str:
    """The whole file.

    Args:
        document: paragraphs in the Markdown that reports use, of which the first is a heading of the first
            level, and tables.
        plots: <svg> elements by the names that the document's images have.
    """
    numbers = itertools.count(1)
    parts = [_table(each, numbers) if isinstance(each, Table) else _text(each, plots) for each in document]
    title = next(each.lstrip("# ") for each in document if isinstance(each, str) and each.startswith("# "))
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    allowed = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    text = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{allowed}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{_STYLE}</style>
</head>
<body>
<main>
{"".join(parts)}</main>
<script>{_SCRIPT}</script>
</body>
</html>
"""
    return text.encode("utf-8", "replace").decode()  # names of files that are no UTF-8


def value_of(cell: str) -> float | None:
    """The number by which a cell sorts: `1,234`, `~3 h 12 min`, `12% (9% to 14%)`, `64KB`; None for words."""
    found = _VALUE.match(cell)
    if found is None:
        return None
    number, unit, rest, smaller = found.groups()
    value = float(number.replace(",", "").replace("−", "-")) * _UNITS.get(unit, 1)
    value += float(rest) * _UNITS[smaller] if rest else 0
    return value if math.isfinite(value) else None


def _text(text: str, plots: Mapping[str, str]) -> str:
    """Headings, images, lists, code between fences, and paragraphs, with blank lines between."""
    made = []
    for index, piece in enumerate(re.split(r"^```\w*\n(.*?)\n```$", text, flags=re.MULTILINE | re.DOTALL)):
        if index % 2:
            made.append(f'<pre class="box" tabindex="0"><code>{escape(piece)}</code></pre>\n')
            continue
        for block in filter(None, re.split(r"\n\s*\n", piece.strip())):
            heading, image = re.match("(#{1,3}) (.*)", block), re.fullmatch(r"!\[(.*)\]\((.*)\)", block)
            if heading:
                level = len(heading[1])
                made.append(f"<h{level}>{_inline(heading[2])}</h{level}>\n")
            elif image:
                made.append(
                    f'<figure><div class="box" tabindex="0" role="img" aria-label="{escape(image[1])}">\n'
                    f"{plots[image[2]]}</div><figcaption>{escape(image[1])}</figcaption></figure>\n"
                )
            elif block.startswith("- "):
                items = re.split(r"^- ", block, flags=re.MULTILINE)[1:]
                made.append("<ul>\n" + "".join(f"<li>{_inline(each)}</li>\n" for each in items) + "</ul>\n")
            else:
                made.append(f"<p>{_inline(block)}</p>\n")
    return "".join(made)


def _inline(text: str) -> str:
    def marked(found: re.Match[str]) -> str:
        if found["code"]:
            return f"<code>{found['code']}</code>"
        if found["bold"]:
            return f"<strong>{found['bold']}</strong>"
        return f'<a href="{found["link"] or found["url"]}">{found["text"] or found["url"]}</a>'

    return _MARKS.sub(marked, escape(" ".join(text.split())))


def _table(table: Table, numbers: Iterator[int]) -> str:
    """Heading, table and notes; below them the samples of its rows, closed. `numbers`: for their anchors."""
    lines, behind = [], []
    for row in table.rows:
        anchor = ""
        if row.samples is not None:
            anchor = f"samples-{next(numbers)}"
            behind.append(f'<section id="{anchor}">{_table(row.samples, numbers)}</section>')
        cells = []
        for index, cell in enumerate(row.cells):
            value, shown = value_of(cell), escape(cell)
            known = "" if value is None else f' data-v="{value!r}"'
            if anchor and index == len(table.head) - 1:
                shown = f'<a href="#{anchor}">{shown}</a>'
            cells.append(f"<td{_name(index < table.names, len(cell) > _LONG)}{known}>{shown}</td>")
        if row.remark:
            cells.append(
                f'<td class="remark" colspan="{len(table.head) - len(cells)}">{escape(row.remark)}</td>'
            )
        lines.append(f"<tr>{''.join(cells)}</tr>\n")
    heads = [
        f'<th scope="col" aria-sort="none"{_name(index < table.names)}>'
        f'<button type="button">{escape(head)}</button></th>'
        for index, head in enumerate(table.head)
    ]
    notes = "".join(f'<p class="note">{escape(note)}</p>\n' for note in table.notes)
    if behind:
        notes += f"<details><summary>Samples ({len(behind)})</summary>\n{''.join(behind)}</details>\n"
    title = escape(table.title)
    return (
        f'<h3>{title}</h3>\n<div class="box" tabindex="0" role="region" aria-label="{title}">\n<table>\n'
        f"<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>\n{''.join(lines)}</tbody>\n</table></div>\n{notes}"
    )


def _name(name: bool, long: bool = False) -> str:
    return ' class="name long"' if name and long else ' class="name"' if name else ""
