"""Results for people and programs: a table, CSV, JSON, SVG, and one page of HTML."""

import csv
import html
import io
import json
import os

import chart
from generators import SHARES, name_of

COLUMNS = ("asked", "requests/s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms")
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 800px; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.4rem; }} h2 {{ font-size: 1.1rem; margin-top: 2rem; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: right; padding: .25rem .6rem; border-bottom: 1px solid #8884; }}
th:last-child, td:last-child {{ text-align: left; }}
svg {{ max-width: 100%; height: auto; border: 1px solid #8883; border-radius: 6px; }}
.answer {{ font-size: 1.1rem; }} .scroll {{ overflow-x: auto; }}
</style></head><body>
<h1>{title}</h1>
{body}
</body></html>
"""


def milliseconds(value):
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def cells(result):
    asked = f"{result.asked}" if result.loop == "closed" else f"{result.asked:.5g}"
    return [asked, f"{result.throughput:.1f}"] + [
        milliseconds(result.quantiles[share]) for share in (0.5, 0.9, 0.99, 0.999)] + [
        milliseconds(result.max_ms)]


def header(loop):
    return ["connections" if loop == "closed" else "rate /s", *COLUMNS[1:]]


def table_head(loop):
    return " ".join(f"{name:>11}" for name in header(loop)) + "  answers"


def table_row(result):
    return " ".join(f"{cell:>11}" for cell in cells(result)) + "  " + result.answers()


def groups(results):
    """The closed loop's results, then the open loop's in the order of their rates."""
    closed = [r for r in results if r.loop == "closed"]
    return [("closed", closed),
            ("open", sorted((r for r in results if r.loop == "open"), key=lambda r: r.asked))]


def csv_text(results, images):
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["loop", "connections_or_rate", "seconds", "sent", "good", "failed",
                     "requests_per_s", "images_per_s"]
                    + [name_of(share) + "_ms" for share in SHARES] + ["max_ms", "answers"])
    for _, group in groups(results):
        for r in group:
            writer.writerow([r.loop, r.asked, f"{r.seconds:.3f}", r.sent, r.good, r.bad,
                             f"{r.throughput:.3f}", f"{r.throughput * images:.3f}"]
                            + ["" if r.quantiles[share] is None else f"{r.quantiles[share]:.3f}"
                               for share in SHARES]
                            + ["" if r.max_ms is None else f"{r.max_ms:.3f}", r.answers()])
    return out.getvalue()


def html_table(loop, results):
    rows = ["<tr>" + "".join(f"<th>{name}</th>" for name in header(loop) + ["answers"]) + "</tr>"]
    for result in results:
        rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>"
                                     for cell in cells(result) + [result.answers()]) + "</tr>")
    return '<div class="scroll"><table>' + "\n".join(rows) + "</table></div>"


def html_page(facts, results, charts, verdict):
    body = []
    if verdict:
        body.append(f'<p class="answer"><strong>{html.escape(verdict)}</strong></p>')
    for name, picture in charts.items():
        loop = "open" if name == "latency.svg" else "closed"
        group = dict(groups(results))[loop]
        about = ("Open loop: requests arrive at random times (Poisson) whatever the server does; latency "
                 "counts from the time a request was meant to be sent." if loop == "open" else
                 "Closed loop: each connection sends its next request when the last was answered.")
        body.append(f"<h2>{loop.capitalize()} loop</h2><p>{about}</p>")
        body.append(picture)
        body.append(html_table(loop, group))
        notes = sorted({f"{r.asked:g}: {note}" for r in group for note in r.notes})
        body += [f"<p>{html.escape(note)}</p>" for note in notes]
    body.append("<h2>How it was measured</h2><ul>"
                + "".join(f"<li>{html.escape(fact)}</li>" for fact in facts) + "</ul>")
    return PAGE.format(title="lensd load test", body="\n".join(body))


def write_files(folder, facts, results, images, objective, best, verdict):
    """Writes report.html, results.json, results.csv and the charts; returns the folder's files."""
    os.makedirs(folder, exist_ok=True)
    by_loop = dict(groups(results))
    charts = {"latency.svg": chart.latency_chart("Latency under load", by_loop["open"], objective,
                                                 best),
              "closed.svg": chart.sweep_chart("Throughput and latency", by_loop["closed"])}
    charts = {name: text for name, text in charts.items() if text}
    files = dict(charts)
    files["report.html"] = html_page(facts, results, charts, verdict)
    files["results.csv"] = csv_text(results, images)
    files["results.json"] = json.dumps({
        "facts": facts, "objective": str(objective) if objective else None,
        "highest_rate": best.asked if best else None, "verdict": verdict,
        "runs": [r.as_json(images) for r in results]}, indent=1) + "\n"
    for name, text in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    return sorted(files)
