"""The plot of most benchmarks: bars for each contestant, by case."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

COLOURS = {
    "lance-spark": "#54a24b",
    "geneva": "#4c78a8",
    "lancedb": "#9ecae9",
    "pylance": "#f58518",
    "loop": "#f58518",
    "Parquet": "#bab0ac",
}
_FURTHER = ("#eeca3b", "#b279a2", "#e45756", "#72b7b2")


def plot_bars(
    cases: Mapping[str, Mapping[str, float]], path: Path, *, label: str, unit: str
) -> None:
    """Draws a bar for each contestant of each case, on a logarithmic axis.

    Args:
        cases: Values by contestant, by case.
        path: File of the picture.
        label: Label of the axis.
        unit: Unit of the values, printed after each value.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import StrMethodFormatter

    names = sorted({name: None for values in cases.values() for name in values}, key=_ours_first)
    further = iter(_FURTHER)
    colours = {name: COLOURS.get(name) or next(further) for name in names}
    most = max(len(values) for values in cases.values())
    figure, axes = plt.subplots(figsize=(9, 1.4 + 0.26 * (most + 0.6) * len(cases)))
    labelled: set[str] = set()
    for row, values in enumerate(cases.values()):
        for place, (name, value) in enumerate(
            sorted(values.items(), key=lambda item: _ours_first(item[0]))
        ):
            at = row + (place - (len(values) - 1) / 2) * 0.8 / most
            axes.barh(
                at,
                value,
                height=0.72 / most,
                color=colours[name],
                label=None if name in labelled else name,
            )
            axes.text(value, at, f" {value:.3g} {unit}", va="center", fontsize=7)
            labelled.add(name)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_yticks(range(len(cases)), list(cases))
    axes.invert_yaxis()
    axes.set_xlabel(f"{label} (less is better)")
    axes.margins(x=0.15)
    axes.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=min(len(names), 3), frameon=False
    )
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _ours_first(name: str) -> bool:
    return name != "lance-spark"
