#!/usr/bin/env python3
"""Draws what the simulation found: goodput over load, for three rules and the bound.

    build/tests/simulate/simulate > runs.csv
    python3 tests/simulate/plot.py runs.csv docs/measurements/scheduling.png

Needs matplotlib (Debian: python3-matplotlib); without it, it says so and ends well.
"""

import csv
import sys

try:
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
except ImportError:
    print("plot.py: no matplotlib (Debian: python3-matplotlib); nothing is drawn")
    sys.exit(0)

RULES = (("bound", "bound: no scheduler can do more", "0.6", "--"),
         ("lensd", "lensd", "tab:blue", "-"),
         ("torchserve", "wait 100 ms, queue of 100 (TorchServe)", "tab:orange", "-"),
         ("triton", "wait 5 ms, no bound (Triton)", "tab:red", "-"))
PANELS = (("gpu", "poisson", 1), ("gpu", "poisson", 8), ("cpu", "poisson", 1),
          ("gpu", "bursty", 1), ("gpu", "bursty", 8), ("cpu", "bursty", 1))


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: plot.py RUNS.csv PICTURE.png")
    with open(sys.argv[1], encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    figure, axes = pyplot.subplots(2, 3, figsize=(11, 6), sharex=True)
    for axis, (machine, arrivals, devices) in zip(axes.flat, PANELS):
        own = [row for row in rows if row["machine"] == machine and row["arrivals"] == arrivals
               and int(row["devices"]) == devices]
        for rule, label, colour, style in RULES:
            points = [row for row in own if row["rule"] == ("lensd" if rule == "bound" else rule)]
            axis.plot([float(row["load"]) for row in points],
                      [float(row["bound" if rule == "bound" else "goodput"]) for row in points],
                      style, color=colour, label=label, linewidth=1.6)
        axis.set_title(f"{machine} x {devices}, {arrivals}", fontsize=10)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    for axis in axes[1]:
        axis.set_xlabel("load (arrivals / capacity)")
    for axis in axes[:, 0]:
        axis.set_ylabel("images in time, a second")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=4, fontsize=9, frameon=False)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(sys.argv[2], dpi=110)


if __name__ == "__main__":
    main()
