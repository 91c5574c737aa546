"""Charts as SVG text: latency against rate, and the closed loop's sweep. No library, no font file;
the colours follow the reader's light or dark setting."""

import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 72, 88, 56, 56
COLOURS = {"p50": "a", "p90": "b", "p99": "c", "p99.9": "d", "throughput": "e"}
STYLE = """
svg.chart { --ink: #1c2330; --dim: #667085; --grid: #e4e7ec; --paper: #ffffff; --bad: #c4320a;
  --a: #1570ef; --b: #0e9384; --c: #c11574; --d: #7a5af8; --e: #b54708; }
@media (prefers-color-scheme: dark) { svg.chart { --ink: #e6e9ef; --dim: #98a2b3; --grid: #2b3340;
  --paper: #12161d; --bad: #fd853a; --a: #53b1fd; --b: #2ed3b7; --c: #faa7e0; --d: #a48afb;
  --e: #fdb022; } }
svg.chart text { font: 13px system-ui, sans-serif; fill: var(--ink); }
svg.chart .title { font-size: 16px; font-weight: 600; }
svg.chart .dim { fill: var(--dim); }
svg.chart .grid { stroke: var(--grid); }
svg.chart .axis { stroke: var(--dim); }
svg.chart polyline { fill: none; stroke-width: 2; }
svg.chart .mark { stroke: var(--bad); fill: none; stroke-width: 1.5; }
svg.chart .limit { stroke: var(--bad); stroke-dasharray: 6 4; }
svg.chart .limit-text { fill: var(--bad); }
"""


def number(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def nice_steps(top, count=6):
    """Round values from 0 to beyond `top`."""
    raw = top / count if top > 0 else 1
    power = 10 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    return [step * i for i in range(math.ceil(top / step - 1e-9) + 1)]


def log_ticks(low, high):
    """1, 2, 5 of each power of ten that lie within."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    ticks = [m * 10 ** p for p in range(first, last + 1) for m in (1, 2, 5)]
    ticks = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
    if len(ticks) > 9:
        ticks = [tick for tick in ticks if f"{tick:e}".startswith("1")]
    return ticks


class Plot:
    """x linear or by position, y logarithmic (ms), and a second y from 0 on the right."""

    def __init__(self, title, x_title, xs, y_low, y_high, categories=False):
        self.parts, self.categories = [], categories
        self.xs = sorted(set(xs))
        self.x_ticks = self.xs if categories else nice_steps(max(xs))
        self.x_high = self.x_ticks[-1]
        self.y_low, self.y_high = y_low / 1.3, y_high * 1.3
        self.labels = []
        self.text(LEFT, 26, title, "title")
        self.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, x_title, "dim", "middle")
        self.text(LEFT, TOP - 12, "latency, ms (logarithmic)", "dim")
        self.axes()

    def x(self, value):
        if self.categories:
            share = (self.xs.index(value) + 0.5) / len(self.xs)
        else:
            share = value / self.x_high
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        share = math.log(max(value, self.y_low) / self.y_low) / math.log(self.y_high / self.y_low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def text(self, x, y, text, kind="", anchor="start"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">'
                          f"{escape(text)}</text>")

    def line(self, x1, y1, x2, y2, kind):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
                          f'class="{kind}"/>')

    def axes(self):
        for tick in log_ticks(self.y_low, self.y_high):
            self.line(LEFT, self.y(tick), WIDTH - RIGHT, self.y(tick), "grid")
            self.text(LEFT - 8, self.y(tick) + 4, number(tick), "dim", "end")
        for tick in self.x_ticks:
            self.line(self.x(tick), HEIGHT - BOTTOM, self.x(tick), HEIGHT - BOTTOM + 5, "axis")
            self.text(self.x(tick), HEIGHT - BOTTOM + 20, number(tick), "dim", "middle")
        self.line(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, "axis")

    def series(self, name, points, place=None):
        """points: [(x, y)] with their own y function `place`, or ms."""
        place = place or self.y
        colour = f"var(--{COLOURS[name]})"
        path = " ".join(f"{self.x(x):.1f},{place(y):.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" stroke="{colour}"/>')
        for x, y in points:
            self.parts.append(f'<circle cx="{self.x(x):.1f}" cy="{place(y):.1f}" r="3" '
                              f'fill="{colour}"><title>{escape(name)} at {number(x)}: {number(y)}'
                              "</title></circle>")
        if points:
            self.labels.append([place(points[-1][1]), self.x(points[-1][0]), name, colour])

    def limit(self, milliseconds, text):
        self.line(LEFT, self.y(milliseconds), WIDTH - RIGHT, self.y(milliseconds), "limit")
        self.text(LEFT + 6, self.y(milliseconds) - 6, text, "limit-text")

    def upright(self, x, text):
        self.line(self.x(x), TOP, self.x(x), HEIGHT - BOTTOM, "limit")
        anchor = "end" if self.x(x) > WIDTH / 2 else "start"
        self.text(self.x(x) + (-6 if anchor == "end" else 6), TOP + 12, text, "limit-text", anchor)

    def failed(self, x, y, text):
        self.parts.append(f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="7" class="mark">'
                          f"<title>{escape(text)}</title></circle>")

    def svg(self, description):
        # Names stand beside the last points, pushed apart where they would overlap.
        self.labels.sort()
        for i, label in enumerate(self.labels):
            if i and label[0] - self.labels[i - 1][0] < 15:
                label[0] = self.labels[i - 1][0] + 15
            self.parts.append(f'<text x="{label[1] + 9:.1f}" y="{label[0] + 4:.1f}" '
                              f'style="fill:{label[3]}">{escape(label[2])}</text>')
        return (f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" '
                f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
                f"<title>{escape(description)}</title><style>{STYLE}</style>"
                f'<rect width="{WIDTH}" height="{HEIGHT}" style="fill:var(--paper)"/>'
                + "".join(self.parts) + "</svg>\n")


LINES = ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p99.9"))


def span(results):
    values = [r.quantiles[share] for r in results for share, _ in LINES if r.quantiles[share]]
    return (min(values), max(values)) if values else (1, 10)


def latency_chart(title, results, objective=None, best=None):
    """Open loop: latency percentiles against the rate asked for; None where nothing was answered."""
    shown = sorted((r for r in results if r.good), key=lambda r: r.asked)
    if not shown:
        return None
    low, high = span(shown)
    if objective:
        low, high = min(low, objective.limit_ms), max(high, objective.limit_ms)
    plot = Plot(title, "requests a second, Poisson arrivals (open loop)",
                [r.asked for r in shown], low, high)
    for share, name in LINES:
        plot.series(name, [(r.asked, r.quantiles[share]) for r in shown])
    for result in shown:
        if result.bad:
            plot.failed(result.asked, result.quantiles[0.5],
                        f"{result.bad} failed: {result.answers()}")
    if objective:
        plot.limit(objective.limit_ms, f"objective: {objective}")
    if best:
        plot.upright(best.asked, f"holds up to {number(best.asked)} /s")
    return plot.svg(f"{title}: latency percentiles against the request rate")


def sweep_chart(title, results):
    """Closed loop: throughput and latency against connections; None without results."""
    shown = sorted((r for r in results if r.good), key=lambda r: r.asked)
    if not shown:
        return None
    low, high = span(shown)
    plot = Plot(title, "connections (closed loop)", [r.asked for r in shown], low, high,
                categories=True)
    ticks = nice_steps(max(r.throughput for r in shown), 5)
    height = HEIGHT - TOP - BOTTOM

    def place(value):
        return HEIGHT - BOTTOM - value / ticks[-1] * height

    for tick in ticks[1:]:
        plot.text(WIDTH - 8, place(tick) + 4, number(tick), "dim", "end")
    plot.text(WIDTH - 8, TOP - 12, "requests/s, right", "dim", "end")
    plot.series("throughput", [(r.asked, r.throughput) for r in shown], place)
    for share, name in LINES[0], LINES[2]:
        plot.series(name, [(r.asked, r.quantiles[share]) for r in shown])
    return plot.svg(f"{title}: requests a second and latency against connections")
