"""Crossover: from how many servers on BytePS is faster than Horovod, by hosts, network rate and model.

A cell of the picture is the fewest servers on hosts of their own with which the step over BytePS is more than
5% faster than over the better of Horovod's rings. Numbers up to 2 n for n hosts are tried in turn, not
bisected: pieces are shared unevenly, so that one server more can be slower. Beyond 8 hosts they are eighths
of n.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Mapping, NamedTuple, Sequence

from base.drawing import new_figure
from base.tables import Row, Table
from comparison.projection.clusters import Cluster
from comparison.projection.model import (
    COLOCATED,
    SEPARATE,
    BytePS,
    FlatRing,
    HierarchicalRing,
    Plan,
    Strategy,
    shape_of,
)
from comparison.projection.workload import Workload
from comparison.report import Part

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOSTS, RATES = (2, 4, 8, 16, 32, 64, 128), (10.0, 25.0, 50.0, 100.0)
AHEAD = 1.05  # how many times as fast BytePS has to be
PICTURE = "crossover.png"


class Crossing(NamedTuple):
    """`servers`: the fewest; 0: one beside each worker is enough, None: none up to twice the hosts is.
    `times`: the ring's step to BytePS's with them; None without."""

    model: str
    hosts: int
    gbps: float
    ring_s: float
    servers: int | None
    times: float | None

    @property
    def words(self) -> list[str]:
        """Servers in hosts, such as n/2, their number, and how many times as fast."""
        if self.times is None:
            return ["never"]
        share = Fraction(self.servers or 0, self.hosts)
        factor = "" if share.numerator == 1 else f"{share.numerator}"
        of = f"/{share.denominator}" if share.denominator > 1 else ""
        servers = [f"{factor}n{of}", f"{self.servers}"] if self.servers else ["beside"]
        return [*servers, f"{self.times:.2f}x"]


Crossings = Mapping[str, Mapping[float, Sequence[Crossing]]]  # by model and rate


def crossings(plans: Sequence[Plan]) -> Crossings:
    return {
        plan.model: {
            gbps: [crossing(plan, hosts, gbps) for hosts in HOSTS]
            for gbps in sorted({*RATES, *([plan.cluster.inter_gbps] if "inter_gbps" in plan.given else [])})
        }
        for plan in plans
    }


def crossing(plan: Plan, hosts: int, gbps: float) -> Crossing:
    work, cluster = plan.workload, replace(plan.cluster, inter_gbps=gbps)
    ring_s = min(_step_s(work, ring, cluster, hosts) for ring in (FlatRing(), HierarchicalRing()))
    for servers in (0, *counts(hosts)):
        byteps = BytePS(servers, SEPARATE) if servers else BytePS(hosts, COLOCATED)
        if ring_s <= AHEAD * _least_s(work, byteps.carried(hosts) / cluster.inter_bytes_s):
            continue  # whatever a simulation would say
        times = ring_s / _step_s(work, byteps, cluster, hosts)
        if times > AHEAD:
            return Crossing(plan.model, hosts, gbps, ring_s, servers, times)
    return Crossing(plan.model, hosts, gbps, ring_s, None, None)


def counts(hosts: int) -> list[int]:
    """Numbers of servers that are tried."""
    parts = min(hosts, 8)
    return [-(-hosts * part // parts) for part in range(1, 2 * parts + 1)]


def _least_s(work: Workload, byte_s: float) -> float:
    """A step that no exchange undercuts which takes `byte_s` seconds for a byte and begins with none before
    its gradient is ready."""
    ends_s, left = work.backward_ends_s, work.total_bytes
    for ready_s, nbytes in work.messages():
        ends_s = max(ends_s, ready_s + left * byte_s)
        left -= nbytes
    return ends_s + work.optimizer_s


def _step_s(work: Workload, strategy: Strategy, cluster: Cluster, hosts: int) -> float:
    shape = shape_of(hosts * cluster.gpus_per_host, cluster.gpus_per_host)
    ends_s = strategy.travel(work.messages(), shape, cluster).ends_s
    return max(work.backward_ends_s, ends_s) + work.optimizer_s


def tables(crossings: Crossings) -> list[Table]:
    """One of each model."""
    found = []
    for model, rows in crossings.items():
        cells = [Row([f"{gbps:g}", *(", ".join(each.words) for each in own)]) for gbps, own in rows.items()]
        head = ("Gbit/s", *(f"{hosts} hosts" for hosts in HOSTS))
        found.append(Table(f"From how many servers on BytePS is faster: {model}", head, cells))
    return found


def section(crossings: Crossings, plan: Plan) -> list[Part]:
    """Of the document; empty without crossings."""
    if not crossings:
        return []
    return [
        *tables(crossings),
        f"Fewest servers, on hosts of their own, with which BytePS's step is more than {AHEAD - 1:.0%} faster"
        " than over the better of Horovod's rings, and how many times as fast. n: worker hosts, of"
        f" {plan.cluster.gpus_per_host} GPUs; beside: a server on each worker host is enough; never: none up"
        f" to 2n is. Collectives reach {plan.cluster.network_efficiency:.0%} of the rate.",
        f"![from how many servers on BytePS is faster]({PICTURE})",
    ]


def draw(crossings: Crossings, plan: Plan) -> Figure:
    """A panel for each model; a cell is the darker the more servers it takes, hatched without any number."""
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    figure = new_figure((1.5 + 5.2 * len(crossings), 4.4))
    for axes, (model, rows) in zip(figure.subplots(1, len(crossings), squeeze=False)[0], crossings.items()):
        for row, own in enumerate(rows.values()):
            for column, each in enumerate(own):
                dark = 0.1 + 0.4 * (each.servers or 0) / each.hosts
                face = "white" if each.servers is None else colormaps["Greys"](dark)
                hatch = "//" if each.servers is None else ""
                edges = {"edgecolor": "#CCCCCC", "linewidth": 0.8}
                axes.add_patch(
                    Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=face, hatch=hatch, **edges)
                )
                axes.text(
                    column, row, "\n".join(each.words), ha="center", va="center", fontsize=9,
                    color="white" if each.servers and dark > 0.55 else "black",
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5} if hatch else None,
                )  # fmt: skip
        axes.set(xlim=(-0.5, len(HOSTS) - 0.5), ylim=(-0.5, len(rows) - 0.5), xlabel="n, worker hosts")
        axes.set_xticks(range(len(HOSTS)), [str(hosts) for hosts in HOSTS])
        axes.set_yticks(range(len(rows)), [f"{gbps:g}" for gbps in rows])
        axes.set_ylabel("network of a host, Gbit/s")
        axes.tick_params(length=0)
        axes.set_title(model, fontsize=10)
    efficiency = f"{plan.cluster.network_efficiency:.0%} of the rate reached"
    figure.suptitle(
        f"Fewest servers on hosts of their own with which BytePS is more than {AHEAD - 1:.0%} faster than"
        f" Horovod's best ring, and how many times as fast (never: none up to 2n is)\n{plan.batch}; hosts of"
        f" {plan.cluster.gpus_per_host} GPUs; {plan.precision}; {efficiency}",
        fontsize=10,
    )
    return figure
