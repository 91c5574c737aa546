"""The report of `./dev gpu` as text: a table of bars, and a page for docs/measurements."""

WORDS = {True: "met", False: "MISSED", None: "-"}
REHEARSAL = "NOT A RESULT OF A GPU: a rehearsal of the command itself, without one."


def bars(report):
    return [dict(bar, part=name) for name, part in report["parts"].items() for bar in part["bars"]]


def results_of(report, name):
    return report["parts"].get(name, {}).get("results", {})


def counts(report):
    found = [bar["met"] for bar in bars(report)]
    return f"{found.count(True)} bars met, {found.count(False)} missed, {found.count(None)} not judged"


def unfinished(report):
    return [f"{name}: {part['status']}" + (f" ({part['reason']})" if part.get("reason") else "")
            for name, part in report["parts"].items() if part["status"] != "done"]


def table(report):
    """For the terminal."""
    lines = []
    for name, part in report["parts"].items():
        lines.append(f"{name}: {part['status']} after {part['seconds']:.0f} s"
                     + (f", in an earlier run of {part['began']}" if part.get("taken_over") else "")
                     + (f", {part['reason']}" if part.get("reason") else ""))
        for bar in part["bars"]:
            lines.append(f"  {WORDS[bar['met']]:6} {bar['what'][:64]:64} {bar['got'][:70]}  [{bar['wanted']}]")
        lines += [f"  note   {note}" for note in part["notes"]]
    # Last, where they are seen.
    lines += [f"MISSED {bar['part']}: {bar['what']}: {bar['got']}  [{bar['wanted']}]" for bar in bars(report)
              if bar["met"] is False]
    lines += [f"NOT FINISHED {text}" for text in unfinished(report)]
    if not report["gpu"]:
        lines.append(REHEARSAL)
    lines.append(counts(report))
    return "\n".join(lines)


def cell(text):
    return " ".join(str(text).split()).replace("|", "\\|")


def milliseconds(rows):
    """Forward passes of all contenders, one line for each network and batch."""
    names = list(dict.fromkeys(name for row in rows for name in row["ms"]))
    copied = list(dict.fromkeys(name for row in rows for name in row.get("host", {})))
    heads = [f"{name} ms" for name in names] + ["lensd images/s"] + [f"{name} with copies ms" for name in copied]
    lines = ["| network | batch | numbers | " + " | ".join(heads) + " |", "|---|--:|---|" + "--:|" * len(heads)]
    for row in rows:
        lines.append(f"| {row['family']} | {row['batch']} | {row['precision']} | "
                     + " | ".join(f"{row['ms'][name]:.3f}" if name in row["ms"] else "" for name in names)
                     + f" | {row['batch'] * 1e3 / row['ms']['lensd']:.0f} | "
                     + " | ".join(f"{row['host'][name]:.3f}" if name in row.get("host", {}) else "" for name in copied)
                     + " |")
    return lines


def worst_steps(result):
    lines = [f"{result['family']} {result['precision']}, batch {result['batch']}: {result['ms']:.3f} ms in "
             f"{result['steps']} steps" + (f", {result['share']:.1%} of the roofline by products, "
                                       f"{result['share_of_all']:.1%} by all steps" if "share" in result else "")
             + "; the steps that lose most:", "",
             "| step | kernel | ms | ideal ms | GFLOP | MB |", "|---|---|--:|--:|--:|--:|"]
    for row in result["losses"][:12]:
        ideal = f"{row['ideal_ms']:.4f}" if "ideal_ms" in row else ""
        lines.append(f"| {cell(row['name'])} | {cell(row['kernel'])} | {row['ms']:.4f} | {ideal} | "
                     f"{row['gflop']:.2f} | {row['bytes'] / 1e6:.1f} |")
    return lines + [""]


def layer_tables(results):
    lines = []
    for result in results:
        lines += [f"{result['family']} fp16, batch {result['batch']}: {result['paired']} of {result['layers']} layers.", "",
                  "| layer | times | lensd ms | PyTorch ms | PyTorch : lensd | kernel |", "|---|--:|--:|--:|--:|---|"]
        lines += [f"| {row['geometry']} | {row['count']} | {row['lensd_ms']:.4f} | {row['torch_ms']:.4f} | "
                  f"{row['torch_ms'] / row['lensd_ms']:.2f} | {cell(row['kernel'])} |" for row in result["rows"]] + [""]
    return lines


def kernel_tables(results):
    lines = []
    for name, rows in results.items():
        lines += [f"{name} fp16, batch 64, the costliest first:", "",
                  "| kernel | µs | arithmetic % | memory % | warps % | registers |", "|---|--:|--:|--:|--:|--:|"]
        lines += [f"| {cell(row['kernel'])} | {(row['ns'] or 0) / 1e3:.1f} | {row['sm']} | {row['dram']} | {row['warps']} | "
                  f"{row['registers']} |" for row in rows[:20]] + [""]
    return lines


def markdown(report):
    lines = ["# " + ("Rehearsal of the GPU command" if not report["gpu"] else
                     f"On a GPU: {report['machine'].get('gpu', 'unknown')}"), ""]
    if not report["gpu"]:
        lines += [f"**{REHEARSAL}**", ""]
    lines += [f"Command: `{report['command']}`, {report['began']}, {counts(report)}.", ""]
    lines += [f"- {key}: {cell(value)}" for key, value in report["machine"].items()]
    lines += [f"- the part {name} is of an earlier run, {part['began']}" for name, part in report["parts"].items()
              if part.get("taken_over")]
    if unfinished(report):
        lines += ["", "Not finished: " + "; ".join(cell(text) for text in unfinished(report)) + "."]
    lines += ["", "| | what | bar | measured |", "|---|---|---|---|"]
    lines += [f"| {WORDS[bar['met']]} | {cell(bar['what'])} | {cell(bar['wanted'])} | {cell(bar['got'])} |"
              for bar in bars(report)]
    rows = [row for name in ("look", "forward") for row in results_of(report, name).get("rows", [])]
    rows = rows + [part["results"]["row"] for name, part in report["parts"].items()
                   if name.startswith("compiled") and "row" in part["results"]]
    if rows:
        lines += ["", "## Forward passes", "", "Medians, in turns, by the host's clock from an idle GPU to an "
                  "idle GPU, on inputs that are on the device; \"with copies\": the whole call, from float32 images in "
                  "the host's memory to answers there.", "", *milliseconds(rows)]
    if results_of(report, "layers"):
        lines += ["", "## Layers", "", "lensd's steps, with activations and residuals, beside F.conv2d and F.linear, without.",
                  "", *layer_tables(results_of(report, "layers").values())]
    if results_of(report, "ncu"):
        lines += ["", "## Kernels", "", *kernel_tables(results_of(report, "ncu"))]
    profiled = list(results_of(report, "profile").values())
    if profiled:
        lines += ["", "## Where the time goes", ""]
        for result in profiled:
            lines += worst_steps(result)
    notes = [f"- {name}: {cell(note)}" for name, part in report["parts"].items() for note in part["notes"]]
    if notes:
        lines += ["", "## Notes", "", *notes]
    return "\n".join(lines).rstrip() + "\n"
