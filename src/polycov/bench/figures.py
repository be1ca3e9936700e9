"""Figures of the benchmark."""

from pathlib import Path

from polycov.bench.tables import GROWTH, GROWTH_METHODS, Row


def growth_figure(rows: list[Row], path: Path) -> Path:
    """Draws time against the number of locations, the channels and the dimension, for both modes."""
    from matplotlib.figure import Figure

    sizes = {"locations": "locations N", "channels": "channels C", "dim": "dimensions D"}
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    axes = figure.subplots(2, len(sizes), sharex="col")
    for i, mode in enumerate(("eval", "train")):
        for j, (size, label) in enumerate(sizes.items()):
            axis = axes[i][j]
            for method in GROWTH_METHODS:
                here = [r for r in rows if (r["varied"], r["mode"], r["method"]) == (size, mode, method)]
                style = ":" if "," in method else "-"
                axis.plot(
                    [r[size] for r in here], [r["milliseconds"] for r in here], style, marker="o", ms=3, label=method
                )
            axis.set(xscale="log", title="" if i else f"against {label}")
            axis.set_xticks(GROWTH[size], [str(v) for v in GROWTH[size]], fontsize=8)
            if size == "dim":
                axis.set_ylim(bottom=0)  # flat: on a logarithmic axis nothing but noise would show
            else:
                axis.set_yscale("log")
                axis.yaxis.set_major_formatter("{x:g}")
            axis.minorticks_off()
            axis.grid(alpha=0.3)
            axis.set_xlabel(label if i else "")
        axes[i][0].set_ylabel("milliseconds, " + ("forward" if mode == "eval" else "forward and backward"))
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path)
    return path
