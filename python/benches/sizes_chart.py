"""The chart of sizes.py: lines on two logarithmic axes, as SVG."""

from __future__ import annotations

import math
from typing import Dict, List, Tuple

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 900, 520, 70, 20, 190, 50
#: The lines that are drawn, with their colours.
LINES = {
    "copy": "#888888",
    "put": "#c0392b",
    "put + get": "#e67e22",
    "call, in + out": "#8e44ad",
    "shared_memory": "#2980b9",
    "ray.put": "#27ae60",
    "iceoryx2": "#34495e",
    "pipe, in + out": "#16a085",
}


def chart(figures: Dict[str, Dict[str, float]], columns: List[str]) -> str:
    """The SVG of figures in seconds, by size in bytes and by name."""
    sizes = [int(size) for size in figures]
    lines = [name for name in LINES if name in columns]
    times = [figures[str(size)][name] * 1e6 for size in sizes for name in lines]
    x_range, y_range = (math.log10(min(sizes)), math.log10(max(sizes))), (math.log10(min(times)), math.log10(max(times)))

    def place(value: float, between: Tuple[float, float], start: float, length: float) -> float:
        low, high = between
        return start + length * (math.log10(value) - low) / ((high - low) or 1)

    def x(size: float) -> float:
        return place(size, x_range, LEFT, WIDTH - LEFT - RIGHT)

    def y(micros: float) -> float:
        return place(micros, y_range, HEIGHT - BOTTOM, TOP + BOTTOM - HEIGHT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for power in range(math.ceil(y_range[0]), math.floor(y_range[1]) + 1):
        at = y(10.0**power)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{10**power:,} us</text>')
    for power in range(math.ceil(x_range[0]), math.floor(x_range[1]) + 1):
        at = x(10.0**power)
        parts.append(f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#dddddd"/>')
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">10^{power}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">bytes</text>')
    for number, name in enumerate(lines):
        points = " ".join(f"{x(size):.1f},{y(figures[str(size)][name] * 1e6):.1f}" for size in sizes)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{LINES[name]}" stroke-width="2"/>')
        row = TOP + 20 * number
        parts.append(f'<path d="M{WIDTH - RIGHT + 15} {row + 8}h24" stroke="{LINES[name]}" stroke-width="2"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 45}" y="{row + 12}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])
