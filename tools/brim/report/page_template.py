"""How the report's page looks: the isolation page's style and what drawings need besides. No script, nothing from elsewhere."""

from __future__ import annotations

from brim.isolation.page_template import STYLE as SHARED_STYLE

_STYLE = """
:root { --purple: #aa4499; --orange: #b97f00; --sky: #3a9bd4; }
@media (prefers-color-scheme: dark) { :root { --purple: #d98ad0; --orange: #f0b840; --sky: #8fd0f7; } }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1.2rem; margin: 1rem 0; }
.verdict.plain { border-color: var(--own_error); }
.warning { border-left: .4rem solid var(--orange); background: var(--shade); padding: .4rem .9rem; margin: .4rem 0; }
figure { border: 1px solid var(--line); border-radius: .4rem; padding: .8rem 1rem; margin: .8rem 0; }
figcaption { font-size: .84rem; color: var(--faint); margin-top: .6rem; }
figcaption p { margin: .2rem 0; overflow-wrap: anywhere; }
.drawing svg { display: block; width: 100%; height: auto; max-width: 68rem; margin: .4rem auto; }
.drawing svg * { stroke-linejoin: round; stroke-linecap: butt; }
.drawing svg text { fill: var(--ink); }
table.figures { font-size: .88rem; margin-top: .4rem; }
table.figures th { vertical-align: bottom; }
table.figures td.number { white-space: nowrap; }
table.figures td.words { overflow-wrap: break-word; }
table.figures td:first-child { min-width: 8rem; }
tr.marked td { background: var(--shade); font-weight: 700; }
tr.marked td:first-child { box-shadow: inset .25rem 0 0 var(--right); }
@media (max-width: 40rem) { body { padding: .8rem; } dl { grid-template-columns: 1fr; } }
@media print {
  :root {
    --paper: #ffffff; --ink: #222222; --faint: #5c5c5c; --line: #dddddd; --shade: #f5f5f3;
    --right: #009e73; --own_error: #0072b2; --cancelled: #9a9a9a; --hurt: #d55e00; --link: #005a8e;
    --purple: #aa4499; --orange: #b97f00; --sky: #3a9bd4;
  }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  nav { display: none; }
  .drawing, .warning, pre { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .drawing svg { max-height: 100mm; }
  table.figures { font-size: 8pt; }
  details::details-content { content-visibility: visible; height: auto; }
  summary { list-style: none; }
  thead { display: table-header-group; }
}
"""

_BEFORE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{% if report.refresh_s is not none %}
<meta http-equiv="refresh" content="{{ report.refresh_s }}">
{% endif %}
<title>{{ report.title }}</title>
<style>"""

_AFTER = """</style>
</head>
<body>
<header>
<h1>{{ report.title }}</h1>
<p class="verdict{{ " plain" if report.good is none else "" if report.good else " bad" }}">{{ report.verdict }}</p>
{% for warning in report.warnings %}
<p class="warning">{{ warning }}</p>
{% endfor %}
</header>
<nav>{% for section in report.sections %}<a href="#{{ section.id }}">{{ section.title }}</a>
{% endfor %}</nav>
<section id="conditions">
<h2>Conditions</h2>
<dl>
{% for name, value in report.conditions %}
<dt>{{ name }}</dt><dd>{{ value }}</dd>
{% endfor %}
</dl>
</section>
{% for section in report.sections %}
<section id="{{ section.id }}">
<h2>{{ section.title }}</h2>
{% for sentence in section.sentences %}
<p>{{ sentence }}</p>
{% endfor %}
{% for text, address in section.links %}
<p><a href="{{ address }}">{{ text }}</a></p>
{% endfor %}
{% for figure in section.figures %}
<figure>
<h3>{{ figure.title }}</h3>
{% if figure.picture %}
<div class="drawing" role="img" aria-label="{{ figure.picture.shows }}">{{ figure.picture.svg | safe }}</div>
{% endif %}
{% if figure.table %}
{% if figure.folded %}<details><summary>{{ figure.table.rows | length }} rows</summary>{% endif %}
<div class="wide">
<table class="figures">
<thead><tr>
{% for name in figure.table.head %}
<th class="{{ "words" if loop.index0 < figure.table.words else "number" }}">{{ name }}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for row in figure.table.rows %}
<tr class="{{ "marked" if loop.index0 in figure.table.marked else "plain" }}">
{% for cell in row %}
<td class="{{ "words" if loop.index0 < figure.table.words else "number" }}">{{ cell }}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
</div>
{% if figure.folded %}</details>{% endif %}
{% endif %}
<figcaption>
{% for note in figure.notes %}
<p>{{ note }}</p>
{% endfor %}
<p class="conditions">Conditions: {{ figure.conditions }}</p>
<p class="command">Command: <code>{{ figure.command }}</code></p>
</figcaption>
</figure>
{% endfor %}
{% for title, text in section.blocks %}
<details><summary>{{ title }}</summary><pre><code>{{ text }}</code></pre></details>
{% endfor %}
</section>
{% endfor %}
</body>
</html>
"""

TEMPLATE = _BEFORE + SHARED_STYLE + _STYLE + _AFTER
"""Jinja, to be rendered with escaping on. Only drawings, which ``brim.report.inline_svg`` has written, go in as they are."""
