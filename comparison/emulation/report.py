"""Figures of emulated settings beside the projection's, verdicts, and the report: emulation.md, .html,
.json and .png. Times are the emulated cluster's: those of the emulation by the scale."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Sequence

from base.drawing import new_figure
from base.quantities import digits, percent
from base.tables import EMPTY, Row, Table
from comparison.backends import REFERENCE
from comparison.canvas import colour, ideal_style, legend_below, marker, plain, whiskers
from comparison.emulation.network import PAYLOAD
from comparison.emulation.plan import TRACE, Group, Scale, Setting
from comparison.projection.model import SEPARATE, Projection
from comparison.report import Found, Report, judged, report_on, size, with_range
from comparison.verdicts import Pair, Spread, compare, spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "emulation"  # of the files
NEAR, FAR = 0.05, 0.15  # goals for the median and the largest deviation from the projection
DEFINITIONS = """\
- Hosts are network namespaces of this machine with one rank each, joined by a bridge. Token buckets limit
  what a host sends and what it receives, each to the rate. Nothing is lost in between. TCP's payload gets
  {payload:.1%} of the rate, which the projection has as the network's efficiency.
- Ranks exchange real arrays through the code of training (`comm/`), Horovod and BytePS. They sleep while a
  GPU would compute; gradients are released when the projection, or the trace, has them ready.
- Scale: {scale}; so are partitions, buckets and fused sizes, and the cycle. Times here are the cluster's.
- After each step every rank compares every element with the mean that it must be, and the ranks their bits;
  a setting with a wrong one has no figure.
- "ms" is the median over the launches of a launch's median step, with the least and the greatest launch. A
  step counts with its slowest rank; the first of a launch is left out.
- "projected" is `--project`'s time for the same cluster with one GPU a host.
- "busiest link" is what a step moved in one direction of one host's link, with headers, at the cluster's
  scale; "to formula" is that to the bytes by which the projection computes.
- "processors" is the share of all processors' time that the emulation took during the steps, "waited" the
  share of a step in which its most delayed thread was ready to run and had no processor. Above 75 or 25% a
  step does not count; a setting with a launch of which fewer than two count has no figure. MPI's ranks pause
  for 0.1 ms where they would poll.
- "Scaling" is against one host, which exchanges nothing: its step is the replay itself, the projected or
  traced time of computing and update, not a launch. Expansion is the speed-up by the hosts."""


class Figures(NamedTuple):
    """Of one setting, in the cluster's seconds and bytes. `samples_s`: by repeat. `expansion`: the speed-up
    by the hosts, against computing alone; None without computing."""

    step_s: Spread
    samples_s: Mapping[int, float]
    projected_s: float | None
    off: float | None
    link_bytes: float
    link_to_formula: float | None
    cpu_share: float
    waited_share: float
    expansion: float | None


def figures_of(
    projected: Mapping[Setting, Projection | None], launches: Sequence[Mapping[str, Any]], scale: Scale
) -> tuple[dict[Setting, Figures], dict[Setting, str]]:
    """Figures, and the reasons of the settings that have none: one launch without a figure is enough."""
    figures, reasons = {}, {}
    for setting, projection in projected.items():
        own = [each for each in launches if setting_of(each) == setting]
        troubles = [each["trouble"] for each in own if each["trouble"]]
        if troubles or not own:
            reasons[setting] = troubles[0] if troubles else "not measured yet"
            continue
        samples = {each["repeat"]: statistics.median(each["steps"]) / scale.times for each in own}
        step_s = spread(list(samples.values()))
        moved = statistics.median(each["link_bytes"] for each in own) * scale.sizes
        figures[setting] = Figures(
            step_s=step_s,
            samples_s=samples,
            projected_s=projection and projection.step_s,
            off=projection and step_s.median / projection.step_s - 1,
            link_bytes=moved,
            link_to_formula=projection and moved * PAYLOAD / projection.sent_bytes,
            cpu_share=max(each["cpu_share"] for each in own),
            waited_share=max(each["waited_share"] for each in own),
            expansion=_alone_s(projection) / step_s.median if projection and projection.compute_s else None,
        )
    return figures, reasons


def _alone_s(projection: Projection) -> float:
    """A step of one host, which exchanges nothing."""
    return projection.compute_s + projection.optimizer_s


def setting_of(launch: Mapping[str, Any]) -> Setting:
    values = launch["setting"]
    return Setting(values["backend"], values["servers"], Group(**values["group"]))


def report_of(
    facts: Mapping[str, Any],
    projected: Mapping[Setting, Projection | None],
    launches: Sequence[Mapping[str, Any]],
    complete: bool,
) -> Report:
    """The report of the launches so far.

    Args:
        facts: as for `comparison.report.report_on`, and cluster, scale, launches (how many there will be).
        projected: every setting, in the order of the tables.
    """
    scale, titles = facts["scale"], facts["titles"]
    figures, reasons = figures_of(projected, launches, scale)
    # Of every group the reference with each of the others; one family of tests.
    groups: dict[tuple[Group, str], dict[str, Mapping[int, float]]] = {}
    for setting in figures:
        alike = [each for each in figures if each.group == setting.group]
        reference = next((each for each in alike if each.backend == REFERENCE), alike[0])
        if setting != reference:
            two = {each.contender: figures[each].samples_s for each in (reference, setting)}
            groups[(setting.group, setting.contender)] = two
    pairs = compare(groups, facts["confidence"])
    first = f"{facts['cluster']['title']}, emulated with one rank a host. Scale: {scale}."
    rows = [
        {
            "backend": setting.backend,
            "servers": setting.servers,
            **setting.group._asdict(),
            "reason": reasons.get(setting),
            **(figures[setting]._asdict() if setting in figures else {}),
        }
        for setting in projected
    ]
    found = Found(
        name=NAME,
        title="Emulated clusters",
        tables=[
            *_tables(titles, projected, figures, reasons, pairs),
            *_scaling(titles, projected, figures),
        ],
        sentences=[first, *_sentences(figures, reasons)],
        figure=draw(figures, titles),
        caption="measured and projected",
        rows=rows,
        pairs=pairs,
        explained=[DEFINITIONS.format(payload=PAYLOAD, scale=scale)],
        number=facts["launches"],
        shares=[launch["others"] for launch in launches],
    )
    return report_on(found, facts, launches, complete)


def _tables(
    titles: Mapping[str, str],
    projected: Mapping[Setting, Projection | None],
    figures: Mapping[Setting, Figures],
    reasons: Mapping[Setting, str],
    pairs: Sequence[Pair],
) -> list[Table]:
    """A table for each work, dtype, accumulation and compression."""
    verdicts = {pair.group: pair for pair in pairs}
    named = {setting.contender: setting.title(titles) for setting in projected}
    head = ["hosts", "Gbit/s", "backend", "ms (least to most)", "projected", "off by", "busiest link"]
    head += ["to formula", "processors", "waited", "verdict"]
    rows: dict[str, list[Row]] = {}  # by table
    for setting in projected:
        group, own = setting.group, figures.get(setting)
        cells = [str(group.hosts), f"{group.gbps:g}", named[setting.contender]]
        if own is None:
            rows.setdefault(group.exchanged, []).append(Row(cells, reasons[setting]))
            continue
        cells += [
            with_range(1e3 * own.step_s.median, 1e3 * own.step_s.least, 1e3 * own.step_s.most),
            EMPTY if own.projected_s is None else digits(1e3 * own.projected_s),
            EMPTY if own.off is None else f"{own.off:+.1%}",
            size(own.link_bytes),
            EMPTY if own.link_to_formula is None else f"{own.link_to_formula:.2f}",
            percent(own.cpu_share),
            percent(own.waited_share),
        ]
        samples = {each.contender: figures[each].samples_s for each in figures if each.group == group}
        pair = verdicts.get((group, setting.contender))
        rows.setdefault(group.exchanged, []).append(judged(cells, pair, samples, named, group.place))
    return [Table(exchanged, head, own, names=3) for exchanged, own in rows.items()]


def _scaling(
    titles: Mapping[str, str],
    projected: Mapping[Setting, Projection | None],
    figures: Mapping[Setting, Figures],
) -> list[Table]:
    """Backends by hosts, for each step and rate: tokens/s of a model, speed-up and expansion."""
    tables = []
    for same in dict.fromkeys(setting.group._replace(hosts=0) for setting in projected):
        settings = [each for each in projected if each.group._replace(hosts=0) == same]
        step = next((each for each in map(projected.get, settings) if each and each.compute_s), None)
        if step is None:  # an exchange alone
            continue
        # Tokens a second of one host; of a trace they are not known.
        alone = step.tokens_per_s / step.hosts * step.step_s / _alone_s(step) if same.work != TRACE else 0
        counts = sorted({each.group.hosts for each in settings})
        rows = []
        for name in dict.fromkeys(each.title(titles) for each in settings):
            own = {each.group.hosts: figures.get(each) for each in settings if each.title(titles) == name}
            shares = {1: 1.0, **{hosts: each.expansion for hosts, each in own.items() if each}}
            cells = []
            for hosts in (1, *counts):
                share = shares.get(hosts)
                rate = [f"{alone * hosts * share:,.0f}"] if alone and share else []
                cells.append(", ".join([*rate, f"{hosts * share:.2f}", f"{share:.3f}"]) if share else EMPTY)
            rows.append(Row([name, *cells]))
        what = f"{'tokens/s, ' if alone else ''}speed-up, expansion"
        head = ("backend", "1 host", *(f"{count} hosts" for count in counts))
        tables.append(Table(f"Scaling: {same.exchanged}, {same.gbps:g} Gbit/s: {what}", head, rows))
    return tables


def _sentences(figures: Mapping[Setting, Figures], reasons: Mapping[Setting, str]) -> list[str]:
    """On the deviations from the projection, and on the settings that have no figures."""
    offs = sorted(abs(own.off) for own in figures.values() if own.off is not None)
    sentences = []
    if offs:
        near = sum(each <= FAR for each in offs)
        sentences.append(
            f"Off the projection by {percent(statistics.median(offs))} (median of {len(offs)} settings), at"
            f" most {percent(offs[-1])}; {near} within {percent(FAR)}, {sum(each <= NEAR for each in offs)}"
            f" within {percent(NEAR)}."
        )
    kinds = {"the processors": "more than the processors carry", "wrong": "wrong", "failed": "failed"}
    for word, text in kinds.items():
        count = sum(reason.startswith(word) for reason in reasons.values())
        if count:
            sentences.append(f"{count} of {len(figures) + len(reasons)} settings: {text}.")
    return sentences


def draw(figures: Mapping[Setting, Figures], titles: Mapping[str, str]) -> Figure | None:
    """Measured against projected times; and of BytePS with servers of their own, the time to that of a ring's
    formula, by servers a host. None without figures."""
    known = [(setting, own, own.projected_s) for setting, own in figures.items() if own.projected_s]
    if not known:
        return None
    figure = new_figure((12, 5.6))
    left, right = figure.subplots(1, 2)
    for number, name in enumerate(dict.fromkeys(setting.title(titles) for setting, _, _ in known)):
        alike = [(own, projected_s) for setting, own, projected_s in known if setting.title(titles) == name]
        places = [1e3 * projected_s for _, projected_s in alike]
        times = [Spread(*(1e3 * value for value in own.step_s)) for own, _ in alike]
        style = {"color": colour(number), "marker": marker(number), "linestyle": "none"}
        left.plot(places, [each.median for each in times], label=name, **style)
        whiskers(left, places, times, color=style["color"])
    projected = [1e3 * projected_s for _, _, projected_s in known]
    ends = [min(projected), max(projected)]
    left.plot(ends, ends, label="equal", **ideal_style())
    left.fill_between(ends, [(1 - FAR) * each for each in ends], [(1 + FAR) * each for each in ends],
                      color="#888888", alpha=0.15, linewidth=0)  # fmt: skip
    left.set(title="a step", xlabel="projected, ms", ylabel="measured, ms", xscale="log", yscale="log")
    rings = {setting.group: projected_s for setting, _, projected_s in known if not setting.servers}
    for number, count in enumerate(dict.fromkeys(setting.group.hosts for setting, _, _ in known)):
        points = sorted(
            (setting.num_servers / count, own.step_s.median / ring_s, projected_s / ring_s)
            for setting, own, projected_s in known
            if setting.placement == SEPARATE and setting.group.hosts == count
            if (ring_s := rings.get(setting.group))
        )
        if points:
            shares, measured, formula = zip(*points)
            right.plot(shares, measured, "o", color=colour(number), label=f"{count} hosts")
            right.plot(shares, formula, "_", color=colour(number), markersize=14)
    right.axhline(1.0, **ideal_style())
    title = "BytePS, servers on hosts of their own (dash: projected)"
    right.set(title=title, xlabel="servers for each worker", ylabel="time to a ring's by the projection")
    if right.get_legend_handles_labels()[0]:
        right.legend(frameon=False)
    else:
        right.set_axis_off()
    for axes in (left, right):
        plain(axes, "both")
    legend_below(figure, [left], 4)
    return figure
