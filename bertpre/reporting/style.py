"""The style sheet of a report page: light, dark, narrow and printed."""

LIGHT = """
  --ink: #1c2530; --soft: #5b6673; --line: #dde2e8; --paper: #ffffff; --card: #f6f8fa; --mark: #ffe7a3;
  --c1: #1f6fb2; --c2: #d1640b; --c3: #2a8a4a; --c4: #a03a8f; --c5: #9a7b00; --c6: #5b5bd6; --heat: 31, 111, 178;
  --masked: #ffe1a8; --random: #f9cfd2; --kept: #d3eccf; --warn: #b3261e; --on-heat: #ffffff; color-scheme: light;
"""
DARK = """
  --ink: #e4e8ed; --soft: #9aa6b2; --line: #343d47; --paper: #14191f; --card: #1d242c; --mark: #6a5310;
  --c1: #62b0f0; --c2: #f29a4a; --c3: #62c584; --c4: #dd86cd; --c5: #d9bd4a; --c6: #a2a2ff; --heat: 98, 176, 240;
  --masked: #6b4e10; --random: #6e2f37; --kept: #28532f; --warn: #ff8a80; --on-heat: #0b1620; color-scheme: dark;
"""
RULES = """
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; color: var(--ink);
  background: var(--paper); max-width: 76rem; margin: 0 auto; padding: 1.5rem clamp(.9rem, 3vw, 2.5rem) 3rem; }
h1 { margin: 0; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 2.6rem 0 .6rem; padding-top: .9rem; border-top: 1px solid var(--line); line-height: 1.25; }
table + .charts, .wide + .charts, .charts { margin-top: 1.1rem; }
h3 { margin: 1.4rem 0 .4rem; font-size: 1.05rem; }
p, ul, ol { max-width: 54rem; } main > .note { max-width: none; } a { color: var(--c1); }
.note, figcaption small, .tile .note { color: var(--soft); } .note { overflow-wrap: anywhere; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: .9rem 0 1.2rem; }
.tiles { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)); }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .8rem 1rem .7rem; }
.tile .label { color: var(--soft); font-size: .92rem; }
.tile .value { font-size: 2rem; font-weight: 650; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tile .value small { font-size: .95rem; font-weight: 400; color: var(--soft); }
.tile .note { font-size: .88rem; line-height: 1.4; }
.tile svg { display: block; width: 100%; height: 14px; margin: .35rem 0 .3rem; }
.charts { display: grid; gap: 1.2rem 1.6rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); }
.maps { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fill, minmax(min(46%, 14.5rem), 1fr)); }
figure { margin: 0; min-width: 0; max-width: 38rem; break-inside: avoid; } figcaption { font-weight: 600; }
figcaption small { font-weight: 400; } .maps figcaption { font-size: .85rem; line-height: 1.3; }
figure svg { display: block; overflow: visible; width: 100%; height: auto; margin-top: .2rem; }
svg text { fill: var(--soft); font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
.maps svg text { font-size: 11.5px; }
svg .grid { stroke: var(--line); } svg .axis { stroke: var(--soft); }
svg .curve { fill: none; stroke-width: 2; stroke-linejoin: round; } svg .faint { stroke-width: 1.3; opacity: .75; }
svg .level { stroke: var(--soft); stroke-dasharray: 6 4; } svg .level.two { stroke-dasharray: 2 4; }
svg .bracket { fill: none; stroke: var(--ink); stroke-width: 2; }
svg .bar { fill: var(--c1); } svg .pale { fill: var(--soft); opacity: .22; } svg .hollow { fill: var(--paper); }
svg .cell { fill: rgb(var(--heat)); } svg .mesh { fill: none; stroke: var(--line); }
.legend { display: flex; flex-wrap: wrap; gap: 0 .9rem; font-size: .85rem; color: var(--soft); line-height: 1.5; }
.legend i { display: inline-block; width: 1.2rem; margin-right: .35rem; vertical-align: middle;
  border-top: 3px solid currentColor; } .legend i.level { border-top: 2px dashed var(--soft); }
.legend i.level.two { border-top-style: dotted; }
.k1 { color: var(--c1); stroke: var(--c1); } .k2 { color: var(--c2); stroke: var(--c2); }
.k3 { color: var(--c3); stroke: var(--c3); } .k4 { color: var(--c4); stroke: var(--c4); }
.k5 { color: var(--c5); stroke: var(--c5); } .k6 { color: var(--c6); stroke: var(--c6); }
.wide { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; margin: .4rem 0; }
td, th { padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { font-weight: 550; } thead th { color: var(--soft); font-weight: 500; white-space: nowrap; }
table.runs th { min-width: 7.5rem; white-space: normal; overflow-wrap: anywhere; }
td.number { font-variant-numeric: tabular-nums; } td.best { font-weight: 700; color: var(--c3); }
table.heat th { vertical-align: middle; }
table.heat td { text-align: center; padding: .5rem .8rem; border: 1px solid var(--line); min-width: 4.2rem;
  background: rgba(var(--heat), var(--share)); font-variant-numeric: tabular-nums; }
table.heat td.dark { color: var(--on-heat); } table.heat small { display: block; opacity: .8; line-height: 1.2; }
.times { display: grid; grid-template-columns: max-content minmax(3rem, 24rem) max-content; gap: .3rem .8rem;
  align-items: center; } .times i { display: block; height: .9rem; min-width: 2px; background: var(--c1);
  border-radius: 2px; }
mark, ruby { border-radius: .25rem; padding: 0 .2rem; color: inherit; }
ruby { white-space: nowrap; } mark { background: var(--mark); }
ruby.masked, .masked { background: var(--masked); } ruby.random, .random { background: var(--random); }
ruby.kept, .kept { background: var(--kept); } rt { font-size: .68rem; color: var(--ink); }
.pair { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .5rem 1rem .7rem;
  margin: .7rem 0; line-height: 2.15; max-width: 62rem; overflow-wrap: anywhere; break-inside: avoid; }
.pair .note { line-height: 1.5; } .sep { color: var(--soft); font-size: .8rem; }
ol.mistakes li { margin: 0 0 .8rem; overflow-wrap: anywhere; } .warning { color: var(--warn); font-weight: 550; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .8rem; overflow-x: auto;
  font-size: 13px; line-height: 1.45; } summary { cursor: pointer; color: var(--c1); font-weight: 550; }
@media (max-width: 34rem) { body { font-size: 15px; } h1 { font-size: 1.6rem; } h2 { font-size: 1.3rem; }
  .tiles { grid-template-columns: 1fr 1fr; gap: .5rem; } .tile { padding: .6rem .7rem; }
  .tile .value { font-size: 1.5rem; } td, th { padding-right: .6rem; } }
@media print { body { font-size: 11pt; max-width: none; padding: 0; } nav { display: none; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } pre { white-space: pre-wrap; }
  h2, h3 { break-after: avoid; } .tile, tr, li, .charts > div { break-inside: avoid; } a { color: inherit; }
  details::details-content { content-visibility: visible; } }
"""
STYLE = f":root {{{LIGHT}}}\n@media screen and (prefers-color-scheme: dark) {{ :root {{{DARK}}} }}\n{RULES}"
