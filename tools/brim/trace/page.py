"""One request's way as an HTML page that needs nothing else, no script and nothing from elsewhere."""

from __future__ import annotations

from jinja2 import Environment, StrictUndefined

from brim.trace.run import Run, Traced
from brim.trace.waterfall import MEANING
from brim.units import us_to_ms

WIDTH, LINE, LABEL, NUMBER = 640, 24, 150, 90
"""Pixels: of the time axis, of a line, and of the words on either side."""
OWNER = {
    "to_gateway": "wire",
    "to_server": "wire",
    "from_server": "wire",
    "to_caller": "wire",
    "gateway_in": "gateway",
    "gateway_out": "gateway",
    "refused": "gateway",
    "unaccounted": "unknown",
    "given_up": "unknown",
    "queue": "queue",
    "room": "queue",
}
"""Part -> its colour; the rest is Triton's."""
COLOURS = {
    "wire": "#8a8f94",
    "gateway": "#cc79a7",
    "server": "#0072b2",
    "queue": "#e69f00",
    "unknown": "url(#unknown)",
}
TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ one.call.request_id }}</title>
<style>
:root { color-scheme: light dark; --paper: #fff; --ink: #222; --faint: #5c5c5c; --line: #ddd; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181a; --ink: #e6e6e3; --faint: #a3a3a0; --line: #3a3d40; } }
body { margin: 0 auto; padding: 1.5rem; max-width: 64rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 "DejaVu Sans", "Segoe UI", system-ui, sans-serif; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; }
code { font-family: "DejaVu Sans Mono", ui-monospace, monospace; overflow-wrap: anywhere; }
table { border-collapse: collapse; }
svg { max-width: 100%; height: auto; } text { fill: var(--ink); font-size: 12px; } line { stroke: var(--line); }
td, th { padding: .2rem .6rem; text-align: left; border-bottom: 1px solid var(--line); } .n { text-align: right; }
.faint { color: var(--faint); }
</style></head><body>
<h1>{{ run.model }}: <code>{{ one.call.request_id }}</code></h1>
<p>{{ one.call.outcome }}{% if one.call.status %}, status {{ one.call.status }}{% endif %}{% if one.refused_for %},
 {{ one.refused_for }}{% endif %}: {{ ms(one.way.took_us) }} ms from sending to answer.</p>
<svg role="img" viewBox="0 0 {{ label + width + number }} {{ line * (bars|length) + 8 }}" width="{{ label + width + number }}"
 aria-label="parts of the way, in order">
<defs><pattern id="unknown" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<rect width="3" height="6" fill="#9a9a9a"/></pattern></defs>
{% for bar in bars %}<g><title>{{ bar.meaning }}</title>
<line x1="{{ label }}" x2="{{ label + width }}" y1="{{ bar.y + line }}" y2="{{ bar.y + line }}"/>
<text x="{{ label - 8 }}" y="{{ bar.y + 16 }}" text-anchor="end">{{ bar.name }}</text>
<rect x="{{ '%.2f' % (label + bar.x) }}" y="{{ bar.y + 4 }}" width="{{ '%.2f' % bar.width }}"
 height="{{ line - 8 }}" fill="{{ bar.colour }}"/>
<text x="{{ label + width + number }}" y="{{ bar.y + 16 }}" text-anchor="end">{{ ms(bar.took_us) }} ms</text></g>
{% endfor %}</svg>
<h2>Its parts</h2>
<table><tr><th>part</th><th class="n">from (us)</th><th class="n">took (us)</th><th>what it is</th></tr>
{% for bar in bars %}<tr><td><code>{{ bar.name }}</code></td><td class="n">{{ bar.began_us }}</td><td class="n">{{ bar.took_us }}</td>
<td>{{ bar.meaning }}</td></tr>
{% endfor %}<tr><th>together</th><th></th><th class="n">{{ one.way.took_us }}</th><th></th></tr></table>
<h2>Who shared it</h2>
{% if batches %}<table><tr><th>{{ run.unit }}</th><th class="n">requests</th><th class="n">took (us)</th><th>of this run</th></tr>
{% for batch in batches %}<tr><td class="n">{{ batch.number }}</td><td class="n">{{ batch.requests }}</td>
<td class="n">{{ batch.took_us }}</td><td>{% for id in batch.own %}<code>{{ id }}</code> {% endfor %}{% if batch.others %}
<span class="faint">and {{ batch.others }} of other callers, of whom nothing is told</span>{% endif %}</td></tr>
{% endfor %}</table>
{% else %}<p>It was in no {{ run.unit }}.</p>{% endif %}
</body></html>
"""
_ENVIRONMENT = Environment(autoescape=True, undefined=StrictUndefined)


def page(run: Run, one: Traced) -> str:
    """The whole document. Pure: the same arguments give the same text."""
    scale = WIDTH / max(1, one.way.took_us)
    bars = [
        {
            "name": part.name,
            "meaning": MEANING[part.name],
            "began_us": part.began_us,
            "took_us": part.took_us,
            "x": part.began_us * scale,
            # What took nothing is still to be seen.
            "width": max(1.0, part.took_us * scale),
            "y": number * LINE,
            "colour": COLOURS[OWNER.get(part.name, "server")],
        }
        for number, part in enumerate(one.way.parts)
    ]
    return _ENVIRONMENT.from_string(TEMPLATE).render(
        run=run,
        one=one,
        bars=bars,
        batches=[run.batch_as_json(batch) for batch in one.batches],
        ms=lambda time_us: f"{us_to_ms(time_us):.3f}",
        label=LABEL,
        width=WIDTH,
        number=NUMBER,
        line=LINE,
    )
