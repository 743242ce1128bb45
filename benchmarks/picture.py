"""The picture of docs/cost.md: seconds of each variant, as bars. Written with the tables."""

import statistics
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

_STYLE = """
    .paper { fill: #ffffff } .text { fill: #1a1a2e } .soft { fill: #55586a }
    .other { fill: #b9bfe0 } .tracked { fill: #3949ab } .rule { stroke: #c5c8dc }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #1e2129 } .text { fill: #e8e9f2 } .soft { fill: #b3b6c6 }
      .other { fill: #4b5382 } .tracked { fill: #9fa8da } .rule { stroke: #454a5e }
    }
"""
_LEFT, _WIDTH, _BAR, _ROW, _HEAD = 190, 480, 20, 22, 36


def cost(
    results: Mapping[str, Any], works: Mapping[str, tuple[str, str]], variants: tuple[str, ...]
) -> str:
    """Bars of the median seconds of each variant of each work, as SVG. ``works``: title and what
    it is, by name; a variant without figures has no bar.
    """
    medians = {name: _medians(results[f"{name}.seconds"], variants) for name in works}
    longest = max(value for seconds in medians.values() for value in seconds.values())
    tops = [0, *accumulate(_HEAD + _ROW * len(seconds) for seconds in medians.values())]
    height = tops[-1] + 16
    words = "; ".join(
        f"{works[name][0]}: {', '.join(f'{_words(v)} {s:.1f}' for v, s in seconds.items())}"
        for name, seconds in medians.items()
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}" role="img"'
        ' aria-labelledby="t d"',
        '     font-family="system-ui, sans-serif" font-size="13">',
        '  <title id="t">Seconds of each variant</title>',
        f'  <desc id="d">{words}.</desc>',
        f"  <style>{_STYLE}  </style>",
        f'  <rect class="paper" width="760" height="{height}" rx="8"/>',
    ]
    for top, (name, label) in zip(tops, medians.items(), strict=False):
        lines += _group(top + 24, works[name], label, longest)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _medians(seconds: Mapping[str, list[float]], variants: tuple[str, ...]) -> dict[str, float]:
    return {
        variant: statistics.median(seconds[variant]) for variant in variants if variant in seconds
    }


def _group(
    top: int, title: tuple[str, str], values: Mapping[str, float], longest: float
) -> Iterator[str]:
    yield f'  <text class="text" x="24" y="{top}" font-weight="600">{title[0]}</text>'
    yield f'  <text class="soft" x="{_LEFT}" y="{top}">{title[1]}</text>'
    for place, (variant, seconds) in enumerate(values.items()):
        y, width = top + 10 + place * _ROW, seconds / longest * _WIDTH
        kind = "tracked" if variant == "tracked" else "other"
        yield f'  <text class="text" x="24" y="{y + 15}">{_words(variant)}</text>'
        yield (
            f'  <rect class="{kind}" x="{_LEFT}" y="{y}" width="{width:.0f}" height="{_BAR}"'
            ' rx="2"/>'
        )
        end = _LEFT + width + 8
        yield f'  <text class="text" x="{end:.0f}" y="{y + 15}">{seconds:.1f} s</text>'


def _words(variant: str) -> str:
    return variant.replace("_", " ")
