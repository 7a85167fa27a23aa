#!/usr/bin/python3
"""Draw the benchmark's JSON as an SVG: a panel for each operation, a bar for each
peer, on a logarithmic scale. Any further arguments are documents, in which the
figures are replaced: all of them between the lines <!-- speed --> and
<!-- end of speed -->, a selection after <!-- speed, short -->.

    tests/bench/chart.py build/bench.json tests/bench/chart.svg \
        README.md tests/bench/README.md
    tests/bench/chart.py build/loader.json tests/bench/loader.svg

Operations that the JSON lacks have no panel.
"""
import json
import math
import re
import sys

SMALL, LARGE = '100 B x 2,000,000', '30 kB x 60,000'
PANELS = [
    (SMALL, 'write, CPU', 'write a blob'),
    (SMALL, 'open, first get', 'open, and the first blob'),
    (SMALL, 'copy', 'copy a random blob'),
    (SMALL, 'range of 16', 'read 16 neighbours'),
    (LARGE, 'write, CPU', 'write a blob'),
    (LARGE, 'copy', 'copy a random blob'),
    ('JPEG 500 x 375 to 224 x 224', 'load an image', 'load an image'),
]
TABLES = [
    (SMALL, ['write, CPU', 'first touch', 'pointer', 'copy', 'range of 16', 'scan',
             'open, first get']),
    (LARGE, ['write, CPU', 'write, synced', 'first touch', 'copy', 'range of 16',
             'scan']),
    ('200,000 datapoints', ['write', 'label, random', 'label, in order',
                            'label column', 'one caption', 'all fields']),
]
# The selection: a column for each of these, a row for each of PEERS_SHORT.
SHORT = [
    (SMALL, 'write, CPU', 'write 100 B'), (SMALL, 'copy', 'read 100 B'),
    (SMALL, 'range of 16', '16 neighbours'), (LARGE, 'write, CPU', 'write 30 kB'),
    (LARGE, 'copy', 'read 30 kB'),
]
PEERS_SHORT = ['ideal Bag', 'bags.h Bag', 'bags.h dataset', 'LMDB', 'SQLite', 'HDF5',
               'a file each', 'Python']
PEERS = ['ideal Bag', 'bags.h Bag', 'bags.h dataset', 'LMDB', 'SQLite', 'HDF5',
         'a file each', 'tar', 'TFRecord', 'Python']
COLUMNS = 3
PANEL_WIDTH, BAR, GAP = 300, 12, 5
LABEL, VALUE = 92, 62
HEAD, FOOT = 44, 18

STYLE = '''
  text { font: 11px sans-serif; fill: #24292f; }
  .title { font-weight: bold; font-size: 12px; }
  .part, .value { fill: #57606a; }
  .other { fill: #b6bec7; } .ideal { fill: #7d8a97; } .ours { fill: #1f6feb; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .part, .value { fill: #9aa4af; }
    .other { fill: #4a525c; } .ideal { fill: #76818d; } .ours { fill: #4493f8; }
  }
'''


def shown(value):
    for unit in ('ns', 'us', 'ms'):
        if value < 999.5:
            break
        value /= 1000
    else:
        unit = 's'
    return f'{value:.{2 if value < 9.95 else 1 if value < 99.5 else 0}f} {unit}'


def peers_of(results, part, operation):
    """The rows of a panel; none if it has no figures."""
    found = [who for of, what, who in results if (of, what) == (part, operation)]
    return PEERS if set(found) & set(PEERS) else found


def panel(results, part, operation, title):
    peers = peers_of(results, part, operation)
    values = {peer: results.get((part, operation, peer)) for peer in peers}
    known = [value for value in values.values() if value]
    yield f'<text class="title" x="0" y="14">{title}</text>'
    yield f'<text class="part" x="0" y="29">{part}</text>'
    # So that the shortest bar is visible too.
    low, high = math.log10(min(known)) - 0.3, math.log10(max(known))
    longest = PANEL_WIDTH - LABEL - VALUE
    for row, peer in enumerate(peers):
        y = HEAD + row * (BAR + GAP)
        yield f'<text x="{LABEL - 6}" y="{y + 10}" text-anchor="end">{peer}</text>'
        value = values[peer]
        if not value:
            yield f'<text class="value" x="{LABEL}" y="{y + 10}">-</text>'
            continue
        width = longest * (math.log10(value) - low) / (high - low)
        kind = 'ours' if 'bags.h' in peer else 'ideal' if peer in ('ideal Bag', 'bare loop') else 'other'
        yield f'<rect class="{kind}" x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}"/>'
        yield (f'<text class="value" x="{LABEL + width + 4:.1f}" y="{y + 10}">'
               f'{shown(value)}</text>')


def table(results, part, operations):
    yield '| ' + ' | '.join([part, *operations]) + ' |'
    yield '| --- |' + ' --- |' * len(operations)
    for who in dict.fromkeys(who for of, _, who in results if of == part):
        values = [results.get((part, operation, who)) for operation in operations]
        if any(values):
            cells = [shown(value) if value else '' for value in values]
            yield f'| {who} | ' + ' | '.join(cells) + ' |'


def short_table(results):
    yield '| | ' + ' | '.join(title for _, _, title in SHORT) + ' |'
    yield '| --- |' + ' ---: |' * len(SHORT)
    for who in PEERS_SHORT:
        values = [results.get((part, operation, who)) for part, operation, _ in SHORT]
        if any(values):
            cells = [shown(value) if value else '' for value in values]
            yield f'| {who} | ' + ' | '.join(cells) + ' |'


def conditions(run):
    load = f', other programs running (load {run["load"]:.0f})' if run['load'] > 1.5 else ''
    rounds = f'Medians of {run["rounds"]} rounds' if run['rounds'] > 1 else 'One round'
    return f'{rounds}; gcc {run["compiler"].split()[0]}{load}:'


def rewrite(path, run, results):
    with open(path, encoding='utf-8') as file:
        text = file.read()
    tables = {
        'speed': '\n\n'.join(
            [conditions(run)] +
            ['\n'.join(table(results, *columns)) for columns in TABLES]),
        'speed, short': '\n'.join(short_table(results)),
    }
    text, count = re.subn(
        r'(?s)(<!-- (speed|speed, short) -->\n).*?(<!-- end of speed -->)',
        lambda found: f'{found[1]}\n{tables[found[2]]}\n\n{found[3]}', text)
    if count != 1:
        sys.exit(f'{path}: expected one line <!-- speed --> or <!-- speed, short -->')
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text)


def draw(path, results):
    panels = [columns for columns in PANELS if peers_of(results, *columns[:2])]
    bars = max(len(peers_of(results, *columns[:2])) for columns in panels)
    panel_height = HEAD + bars * (BAR + GAP) + FOOT
    columns, rows = min(COLUMNS, len(panels)), -(-len(panels) // COLUMNS)
    width, height = columns * (PANEL_WIDTH + 20), rows * panel_height
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
             f'height="{height}" viewBox="0 0 {width} {height}">',
             '<title>Times of bags.h and of others; shorter is faster, '
             'logarithmic</title>', f'<style>{STYLE}</style>']
    for i, (part, operation, title) in enumerate(panels):
        x = i % COLUMNS * (PANEL_WIDTH + 20) + 5
        y = i // COLUMNS * panel_height
        lines.append(f'<g transform="translate({x} {y})">')
        lines.extend(panel(results, part, operation, title))
        lines.append('</g>')
    lines.append('</svg>')
    with open(path, 'w', encoding='utf-8') as file:
        file.write('\n'.join(lines) + '\n')


def main():
    source, chart, *texts = sys.argv[1:]
    with open(source, encoding='utf-8') as file:
        run = json.load(file)
    results = {(r['part'], r['operation'], r['who']): r['figure']
               for r in run['results'] if r['unit'] == 'ns'}
    draw(chart, results)
    for text in texts:
        rewrite(text, run, results)


main()
