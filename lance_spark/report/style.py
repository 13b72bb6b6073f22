"""The style of the page. Narrow windows show rows of tables as blocks."""

STYLE = r"""
:root {
  color-scheme: light dark;
  --line: #8884; --quiet: #777; --ok: #1b7f3b;
  --bad: #c0392b; --warn: #a56500; --run: #2962c9;
}
* { box-sizing: border-box; }
html { font: 15px/1.45 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 84rem; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; margin: 0 0 .2rem; }
h2 { font-size: 1.1rem; margin: 1.6rem 0 .5rem; }
h3 { font-size: .95rem; margin: 1rem 0 .3rem; }
p { margin: .4rem 0; }
nav { display: flex; flex-wrap: wrap; gap: 1rem; }
nav a { color: var(--run); padding: .3rem 0; }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .3rem 0; padding: 0 .7rem; }
details > :last-child { margin-bottom: .7rem; }
details > summary:last-child { margin-bottom: 0; }
summary { cursor: pointer; padding: .45rem 0; }
summary > :empty { display: none; }
summary > :empty:is(progress) { display: inline-block; }
.job > summary, .table > summary {
  align-items: center; display: flex; flex-wrap: wrap; gap: .2rem .9rem; list-style: none;
}
.job > summary::-webkit-details-marker, .table > summary::-webkit-details-marker { display: none; }
.job > summary::before, .table > summary::before { content: "\25B8"; color: var(--quiet); }
.job[open] > summary::before, .table[open] > summary::before { content: "\25BE"; }
summary time { color: var(--quiet); margin-left: auto; }
summary:focus-visible, a:focus-visible { outline: 2px solid var(--run); outline-offset: 2px; }
.status { border: 1px solid currentColor; border-radius: .8rem; font-size: .8rem; padding: 0 .5rem; }
.done { color: var(--ok); }
.failed, .dead { color: var(--bad); }
.partial, .cancelled { color: var(--warn); }
.running, .pending { color: var(--run); }
.quiet { color: var(--quiet); }
.problem { border-left: .25rem solid var(--bad); padding-left: .6rem; }
progress { accent-color: var(--run); min-width: 4rem; width: 8rem; }
dl { display: grid; gap: .15rem 1rem; margin: .3rem 0; }
dl { grid-template-columns: fit-content(40%) minmax(0, 1fr); }
dt { min-width: 7rem; }
dt { color: var(--quiet); }
dd { margin: 0; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th { text-align: start; color: var(--quiet); font-weight: normal; white-space: nowrap; }
td[data-head=time] { white-space: nowrap; }
td[data-head=by] { min-width: 7rem; }
th, td { border-top: 1px solid var(--line); padding: .25rem .6rem .25rem 0; vertical-align: top; }
code { font-family: ui-monospace, monospace; font-size: .88em; }
@media (max-width: 700px) {
  body { padding: .6rem; }
  summary time { margin-left: 0; }
  dl { grid-template-columns: fit-content(45%) minmax(0, 1fr); gap: .15rem .6rem; }
  dt { min-width: 5rem; }
  td[data-head=time] { white-space: normal; }
  td[data-head=by] { min-width: 0; }
  table, tbody, tr { display: block; }
  thead { display: none; }
  tr { border-top: 1px solid var(--line); padding: .3rem 0; }
  td { border: 0; display: inline-block; margin-inline-end: .8rem; padding: .1rem 0; }
  td:empty { display: none; }
  td[data-head]:not(:empty)::before { content: attr(data-head) ": "; color: var(--quiet); }
  td[data-head=""]::before { content: none !important; }
}
@media print { details { break-inside: avoid; } nav { display: none; } }
"""
