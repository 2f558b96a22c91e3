"""How the page looks: one HTML document with its style, and without a script or anything from elsewhere."""

STYLE = """
:root {
  --paper: #ffffff; --ink: #222222; --faint: #5c5c5c; --line: #dddddd; --shade: #f5f5f3;
  --right: #009e73; --own_error: #0072b2; --cancelled: #9a9a9a; --hurt: #d55e00; --link: #005a8e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #16181a; --ink: #e6e6e3; --faint: #a3a3a0; --line: #3a3d40; --shade: #202327;
    --right: #2fbf95; --own_error: #4da3dc; --cancelled: #7d8286; --hurt: #ff8a3d; --link: #7dbdf0;
  }
}
* { box-sizing: border-box; }
html { color-scheme: light dark; }
body {
  margin: 0 auto; padding: 1.5rem; max-width: 76rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 "DejaVu Sans", "Segoe UI", system-ui, sans-serif;
}
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 0; }
a { color: var(--link); }
code, pre { font-family: "DejaVu Sans Mono", ui-monospace, monospace; font-size: .86em; }
.verdict {
  font-size: 1.1rem; margin: .25rem 0 1rem; padding: .6rem .9rem; border-left: .4rem solid var(--right); background: var(--shade);
}
.verdict.bad { border-color: var(--hurt); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 0; }
dt { color: var(--faint); }
dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .5rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--faint); }
td.number, th.number { text-align: right; }
.checks { font-size: .92rem; }
.checks th { vertical-align: bottom; }
.checks th, .checks td { padding: .3rem .4rem; }
.checks td { white-space: nowrap; }
td.hurts { color: var(--hurt); font-weight: 700; }
.state { display: inline-block; min-width: 3.2rem; font-weight: 700; }
.state.ok { color: var(--right); }
.state.failed { color: var(--hurt); }
.state.skipped { color: var(--faint); }
svg.bar { width: 8rem; height: .9rem; display: block; margin-top: .3rem; }
.key { display: inline-flex; gap: 1.2rem; flex-wrap: wrap; color: var(--faint); margin: .5rem 0 0; }
.key svg { width: .8rem; height: .8rem; vertical-align: -.05rem; margin-right: .3rem; }
.fill-right { fill: var(--right); } .fill-own_error { fill: var(--own_error); }
.fill-cancelled { fill: var(--cancelled); } .fill-hurt { fill: var(--hurt); }
article { border: 1px solid var(--line); border-radius: .4rem; padding: .8rem 1rem; margin: .8rem 0; }
article.failed { border-color: var(--hurt); border-width: 2px; }
article > p { margin: .4rem 0; overflow-wrap: anywhere; }
.faint { color: var(--faint); }
pre { margin: .4rem 0; padding: .6rem .8rem; background: var(--shade); border: 1px solid var(--line); border-radius: .3rem;
  white-space: pre-wrap; overflow-wrap: anywhere; user-select: all; }
details { margin-top: .6rem; }
summary { cursor: pointer; }
.exchanges { font-size: .84rem; table-layout: fixed; min-width: 58rem; }
.exchanges col:nth-child(1) { width: 11%; } .exchanges col:nth-child(2) { width: 26%; } .exchanges col:nth-child(3) { width: 13%; }
.exchanges col:nth-child(4) { width: 19%; } .exchanges col:nth-child(5) { width: 14%; } .exchanges col:nth-child(6) { width: 12%; }
.exchanges td { overflow-wrap: anywhere; }
.exchanges tr.hurt > td:first-child { box-shadow: inset .25rem 0 0 var(--hurt); }
ul { margin: .3rem 0; padding-left: 1.2rem; }
li { overflow-wrap: anywhere; }
@page { size: A4 landscape; margin: 12mm; }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  article, tr { break-inside: avoid; }
  .wide { overflow: visible; }
  .exchanges { min-width: 0; }
  a { color: inherit; text-decoration: none; }
}
"""
"""Colours, tables and articles, light and dark, on screen and on paper. Other pages of ours have it too."""

_BEFORE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Isolation of {{ model }}: {{ "holds" if ok else "broken" }}</title>
<style>"""

_AFTER = """</style>
</head>
<body>
<header>
<h1>Isolation of {{ model }}</h1>
<p class="verdict{{ "" if ok else " bad" }}">{{ verdict }}</p>
</header>
<section>
<h2>Conditions</h2>
<dl>
{% for name, value in conditions %}
<dt>{{ name }}</dt><dd>{{ value }}</dd>
{% endfor %}
</dl>
</section>
<section>
<h2>Checks</h2>
<div class="wide">
<table class="checks">
<thead><tr><th>check</th><th>state</th><th>requests</th><th class="number">sent</th>
{% for column in columns %}<th class="number">{{ column.label }}</th>{% endfor %}
<th class="number">mean batch</th><th class="number">seconds</th></tr></thead>
<tbody>
{% for check in checks %}
<tr>
<td><a href="#{{ check.anchor }}">{{ check.id }}</a></td>
<td><span class="state {{ check.state }}">{{ check.state }}</span></td>
<td>{% if check.parts %}<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label="{{ check.bar_label }}">
<title>{{ check.bar_label }}</title>
{% for part in check.parts %}<rect class="fill-{{ part.kind }}" x="{{ part.x }}" y="0" width="{{ part.width }}" height="10"/>{% endfor %}
</svg>{% endif %}</td>
<td class="number">{{ check.sent }}</td>
{% for cell in check.cells %}<td class="number{{ " hurts" if cell.hurts }}">{{ cell.count }}</td>{% endfor %}
<td class="number">{{ check.mean_batch }}</td>
<td class="number">{{ check.seconds }}</td>
</tr>
{% endfor %}
</tbody>
</table>
</div>
<p class="key">
{% for kind, label in legend %}
<span><svg viewBox="0 0 10 10" aria-hidden="true"><rect class="fill-{{ kind }}" width="10" height="10"/></svg>{{ label }}</span>
{% endfor %}
</p>
</section>
<section>
<h2>What was sent, and what came</h2>
{% for check in checks %}
<article id="{{ check.anchor }}" class="{{ check.state }}">
<h3><span class="state {{ check.state }}">{{ check.state }}</span> {{ check.id }}</h3>
{% if check.title %}<p class="faint">{{ check.title }}</p>{% endif %}
{% if check.message %}<p>{{ check.message }}</p>{% endif %}
{% if check.faults %}<ul>{% for fault in check.faults %}<li>{{ fault }}</li>{% endfor %}</ul>{% endif %}
{% if check.repeat %}<p class="faint">Repeat it with</p><pre><code>{{ check.repeat }}</code></pre>{% endif %}
{% if check.figures %}
<dl>{% for name, value in check.figures %}<dt>{{ name }}</dt><dd>{{ value }}</dd>{% endfor %}</dl>
{% endif %}
{% if check.exchanges %}
<details{{ " open" if check.state == "failed" }}>
<summary>{{ check.exchanges | length }} of {{ check.sent }} requests, with their neighbours</summary>
<div class="wide">
<table class="exchanges">
<colgroup><col><col><col><col><col><col><col></colgroup>
<thead><tr><th>request</th><th>sent</th><th>alone it gets</th><th>what came</th><th>verdict</th>
<th>neighbours</th><th class="number">ms</th></tr></thead>
<tbody>
{% for one in check.exchanges %}
<tr class="{{ "hurt" if one.fault else "unhurt" }}">
<td>{{ one.request_id }}<br><span class="faint">{{ one.protocol }}</span></td>
<td>{{ one.sent }}</td>
<td>{{ one.expected or "anything is its own" }}</td>
<td>{{ one.came }}</td>
<td>{{ one.verdict | replace("_", " ") }}{% if one.fault %}<br>{{ one.fault }}{% endif %}</td>
<td>{{ one.neighbour_count }} {{ one.company }}{% if one.neighbours %}
<details><summary>{{ one.neighbours | length }} of them</summary>
<ul>{% for other in one.neighbours %}<li>{{ other }}</li>{% endfor %}</ul></details>{% endif %}</td>
<td class="number">{{ one.took }}</td>
</tr>
{% endfor %}
</tbody>
</table>
</div>
</details>
{% endif %}
</article>
{% endfor %}
</section>
</body>
</html>
"""

TEMPLATE = _BEFORE + STYLE + _AFTER
"""Jinja, to be rendered with escaping on."""
