'use strict';
// One page, its data inside it. Nothing is loaded from anywhere.
(() => {
const data = JSON.parse(document.getElementById('data').textContent);
const get = id => document.getElementById(id);
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colours = {shifted: '--b', first_row: '--a', midpoint: '--c', pairwise: '--d'};
const dashes = {shifted: [], first_row: [8, 4], midpoint: [2, 3], pairwise: [10, 3, 2, 3]};
const unique = list => [...new Set(list)];

// --- small parts -----------------------------------------------------------------------------

function element(name, attributes, ...children) {
  const svg = ['svg', 'rect', 'text', 'title'].includes(name);
  const made = svg ? document.createElementNS('http://www.w3.org/2000/svg', name)
                   : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function fillTable(table, head, rows) {
  const cell = (tag, c) => c instanceof Object ? element(tag, {class: c.style}, c.text)
                                               : element(tag, {}, String(c));
  table.replaceChildren(
      element('thead', {}, element('tr', {}, ...head.map(c => cell('th', c)))),
      element('tbody', {}, ...rows.map(r => element('tr', {}, ...r.map(c => cell('td', c))))));
}

function fillSelect(select, values, chosen, show, changed) {
  select.replaceChildren(...values.map(v => element('option', {value: v}, show ? show(v) : v)));
  select.value = String(chosen);
  select.addEventListener('change', changed);
}

// The CSV of each section: a function that gives rows, the first of them names.
const tables = {};

function download(name) {
  const field = x => {
    const text = x === null || x === undefined ? '' : String(x);
    return /[",\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  };
  const text = tables[name]().map(row => row.map(field).join(',')).join('\r\n') + '\r\n';
  const link = element('a', {
    href: URL.createObjectURL(new Blob([text], {type: 'text/csv'})),
    download: 'kda-' + name + '.csv'});
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// --- charts ----------------------------------------------------------------------------------

const charts = {};

// A chart, or, in a build without the chart library, its numbers as a table.
function draw(id, type, labels, datasets, options) {
  const canvas = get(id);
  if (!window.Chart) {
    const table = element('table', {id: id + '-table'});
    const show = x => Array.isArray(x) ? x.map(show).join(' to ')
                      : typeof x === 'number' ? String(Number(x.toPrecision(4))) : '';
    fillTable(table, [options.x, ...datasets.map(d => d.label)],
              labels.map((l, i) => [l, ...datasets.map(d => show(d.data[i]))]));
    const box = canvas.closest('.chart') || get(id + '-box');
    box.className = 'wide';
    box.id = id + '-box';
    box.replaceChildren(table, Object.assign(canvas, {hidden: true}));
    return;
  }
  charts[id]?.destroy();
  const axis = (title, more) => ({
    title: {display: true, text: title, color: css('--dim')},
    ticks: {color: css('--dim')}, grid: {color: css('--line')}, ...more});
  charts[id] = new Chart(canvas, {
    type,
    data: {labels, datasets},
    options: {
      animation: false, responsive: true, maintainAspectRatio: false, spanGaps: false,
      indexAxis: options.horizontal ? 'y' : 'x',
      interaction: {mode: 'index', intersect: false, axis: options.horizontal ? 'y' : 'x'},
      plugins: {legend: {labels: {color: css('--text'), boxWidth: 28, boxHeight: 2}}},
      scales: {x: axis(options.horizontal ? options.y : options.x, options.xMore),
               y: axis(options.horizontal ? options.x : options.y, options.yMore)}}});
}

function line(label, values, colour, dash = [], points = 0) {
  return {label, data: values, borderColor: css(colour), backgroundColor: css(colour),
          borderDash: dash, borderWidth: 2, pointRadius: points};
}

// --- the leak --------------------------------------------------------------------------------

function drawLeak() {
  const said = data.leaks.map(l => {
    const moved = l.elements.filter(e => e.before !== e.after).length;
    return element('span', {class: moved ? 'leaks' : ''},
                   `${l.reference}: ${moved} of ${l.elements.length} change`);
  });
  get('verdicts').replaceChildren(...said.flatMap((s, i) => i ? [' · ', s] : [s]));
  const leak = data.leaks.find(l => l.reference === 'midpoint');
  const bits = text => ({text, style: 'bits'});
  fillTable(get('leak-table'), ['midpoint', 'before', 'after', 'ulp', 'difference'],
            leak.elements.map(e => [`A_qk[${e.index}]`, bits(e.before), bits(e.after), e.ulp,
                                    e.difference.toExponential(2)]));
  tables.leak = () => [['reference', 'element', 'before_bits', 'after_bits', 'ulp', 'difference'],
    ...data.leaks.flatMap(l => l.elements.map(e =>
        [l.reference, `A_qk[${e.index}]`, e.before, e.after, e.ulp, e.difference]))];
}

// --- the heat map ----------------------------------------------------------------------------

const number = hex => {
  const view = new DataView(new ArrayBuffer(4));
  view.setUint32(0, parseInt(hex, 16));
  return view.getFloat32(0);
};

// Calls f(i, j, hex before, hex after) for all kept entries.
function eachEntry(map, token, f) {
  let at = 0;
  for (let i = 0; i < data.heat.tokens; ++i) {
    for (let j = 0; j <= i; ++j, ++at) f(i, j, map.base[at], map.after[token][at]);
  }
}

function drawHeat() {
  const map = data.heat.references[get('heat-reference').value];
  const token = Number(get('heat-token').value), n = data.heat.tokens;
  const svg = element('svg', {viewBox: `-1.2 -1.2 ${n + 1.4} ${n + 1.4}`, role: 'img',
                              'aria-label': 'Changes of A_qk'});
  for (let t = 0; t < n; t += 2) {
    svg.append(element('text', {x: t + .5, y: -.3, 'text-anchor': 'middle'}, String(t)),
               element('text', {x: -.3, y: t + .68, 'text-anchor': 'end'}, String(t)));
  }
  let early = 0, leaked = 0, largest = 0;
  eachEntry(map, token, (i, j, before, after) => {
    const gap = Math.abs(number(after) - number(before));
    const rect = element('rect', {x: j, y: i, width: 1, height: 1, 'data-i': i, 'data-j': j});
    rect.style.fill = css('--empty');
    if (before !== after) {
      rect.style.fill = css(i < token ? '--leak' : '--allowed');
      // Six decades of size, from pale to full.
      const decades = Math.log10(Math.max(gap, 1e-38) / data.bound) / 6 + 1;
      rect.style.fillOpacity = String(Math.min(1, Math.max(.2, .2 + .8 * decades)));
      rect.dataset.changed = i < token ? 'leak' : 'allowed';
    }
    if (i < token) {
      ++early;
      if (before !== after) ++leaked, largest = Math.max(largest, gap);
    }
    const tell = () => {
      get('heat-text').textContent = `A_qk[${i},${j}]: 0x${before} = ` +
          `${number(before).toExponential(4)} before, 0x${after} = ` +
          `${number(after).toExponential(4)} after, ` +
          (before === after ? 'the same bits' : `apart by ${gap.toExponential(2)}`);
    };
    rect.addEventListener('pointerenter', tell);
    rect.addEventListener('click', tell);
    svg.append(rect);
  });
  get('heat-map').replaceChildren(svg);
  get('heat-value').textContent = String(token);
  get('heat-text').textContent = `Gates of token ${token} change: ${leaked} of ${early} earlier ` +
      'weights move' + (leaked ? `, by up to ${largest.toExponential(2)}, ` +
      `${(100 * largest / data.bound).toFixed(1)} % of 4u.` : '. Touch a cell for its bits.');
}

function setUpHeat() {
  fillSelect(get('heat-reference'), Object.keys(data.heat.references), 'midpoint', null, drawHeat);
  get('heat-token').max = String(data.heat.tokens - 1);
  get('heat-token').addEventListener('input', drawHeat);
  tables.heat = () => {
    const rows = [['reference', 'changed_token', 'i', 'j', 'before_bits', 'after_bits', 'before',
                   'after']];
    for (const [reference, map] of Object.entries(data.heat.references)) {
      for (let token = 0; token < data.heat.tokens; ++token) {
        eachEntry(map, token, (i, j, before, after) => rows.push(
            [reference, token, i, j, '0x' + before, '0x' + after, number(before), number(after)]));
      }
    }
    return rows;
  };
}

// --- sizes -----------------------------------------------------------------------------------

function drawSizes() {
  const all = data.sizes.flatMap(s => Object.keys(s.counts).map(Number));
  const low = Math.max(-30, Math.min(...all, -8)), high = Math.max(...all, -6);
  const exponents = Array.from({length: high - low + 1}, (_, i) => low + i);
  const share = (s, e) => 100 * (s.counts[e] || 0) / s.compared;
  const palette = ['--a', '--b', '--c', '--d'];
  draw('sizes-chart', 'bar', exponents.map(e => e === -6 ? '2^-6 = 4u' : `2^${e}`),
       data.sizes.map((s, i) => ({label: `${s.key_window} keys`, data: exponents.map(e => share(s, e)),
                                  backgroundColor: css(palette[i % 4])})),
       {x: 'size of the change, from this power of two to the next', y: '% of earlier weights'});
  tables.sizes = () => [['reference', 'key_window', 'precision', 'log2_size', 'count', 'compared'],
    ...data.sizes.flatMap(s => Object.entries(s.counts).map(([e, count]) =>
        ['midpoint', s.key_window, 'mixed', e, count, s.compared]))];
}

// --- range -----------------------------------------------------------------------------------

const rangeNow = () => data.range.find(
    r => String(r.lower_bound) === get('range-bound').value && r.format === get('range-format').value);

function drawRange() {
  const r = rangeNow(), n = r.steps.length;
  const distances = r.steps.map(s => s.distance);
  const flat = value => Array(n).fill(value);
  draw('range-chart', 'line', distances,
       [line('growing factor', r.steps.map(s => s.growing_log2), '--c'),
        line('shrinking factor', r.steps.map(s => s.shrinking_log2), '--a'),
        line(`largest ${r.format}`, flat(r.largest_exponent + 1), '--dim', [6, 4]),
        line(`smallest normal ${r.format}`, flat(r.smallest_normal_exponent), '--dim', [2, 3])],
       {x: 'tokens from the reference', y: 'log2'});
  const over = r.steps.find(s => s.overflows), under = r.steps.find(s => s.underflows);
  get('range-text').textContent = (over ? `The growing factor overflows ${r.format} after ` +
      `${over.distance} tokens, at 2^${over.growing_log2.toFixed(1)}. ` : '') +
      (under ? `The shrinking one leaves the normal numbers after ${under.distance}.` : '');
  drawReach();
  tables.range = () => [['lower_bound', 'format', 'distance', 'growing_log2', 'shrinking_log2',
                         'overflows', 'underflows', 'vanishes'],
    ...data.range.flatMap(x => x.steps.map(s => [x.lower_bound, x.format, s.distance,
        s.growing_log2, s.shrinking_log2, s.overflows, s.underflows, s.vanishes]))];
}

function drawReach() {
  const r = rangeNow(), window = Number(get('reach-window').value);
  const shown = r.windows.filter(w => w.key_window === window);
  draw('reach-chart', 'bar', shown.map(w => w.reference + (w.in_format ? '' : ' (out of range)')),
       [{label: 'row (query)', data: shown.map(w => w.query_factor_log2),
         backgroundColor: css('--a')},
        {label: 'column (key)', data: shown.map(w => w.key_factor_log2),
         backgroundColor: css('--c')}],
       {x: '', y: 'log2 of the factor', horizontal: true,
        xMore: {suggestedMin: -r.largest_exponent - 1, suggestedMax: r.largest_exponent + 1,
                ticks: {color: css('--dim'), stepSize: (r.largest_exponent + 1) / 2},
                // The ends of the format's range stand out.
                grid: {color: tick => Math.abs(tick.tick.value) === r.largest_exponent + 1
                           ? css('--leak') : css('--line')}}});
  fillTable(get('widest-table'),
            [`at ${r.lower_bound}, ${r.format}`, 'causal', 'keys', 'tokens in range',
             'the library takes', 'lost at most', 'kept entries'],
            r.widest.map(w => {
              const at = r.windows.find(x => x.reference === w.reference &&
                                             x.key_window === (w.library ?? 0));
              return [w.reference, w.causal ? 'yes' : {text: 'no', style: 'leaks'},
                      w.multiple_of_8, w.tokens, w.library ?? 'none',
                      at ? (at.loss_bound * 2 ** -at.headroom_bits).toExponential(1) : '-',
                      at ? `${window_kept(r, at.key_window)}` : '-'];
            }));
  tables.reach = () => [['lower_bound', 'format', 'reference', 'key_window', 'shift',
                         'query_low_log2', 'query_high_log2', 'key_low_log2', 'key_high_log2',
                         'in_format', 'fits', 'loss_bound', 'headroom_bits'],
    ...data.range.flatMap(x => x.windows.map(w => [x.lower_bound, x.format, w.reference,
        w.key_window, w.shift, ...w.query_factor_log2, ...w.key_factor_log2, w.in_format, w.fits,
        w.loss_bound, w.headroom_bits]))];
}

function window_kept(r, window) {
  const kept = r.kept.find(k => k.key_window === window);
  return `${kept.kept} of ${kept.of}`;
}

function setUpRange() {
  fillSelect(get('range-bound'), unique(data.range.map(r => r.lower_bound)), data.lower_bound,
             null, drawRange);
  fillSelect(get('range-format'), unique(data.range.map(r => r.format)), 'bf16', null, drawRange);
  fillSelect(get('reach-window'), unique(data.range[0].windows.map(w => w.key_window)), 32,
             w => `${w} keys`, drawReach);
}

// --- accuracy --------------------------------------------------------------------------------

function drawAccuracy() {
  const window = Number(get('accuracy-window').value);
  const shown = data.accuracy.filter(a => a.precision === get('accuracy-precision').value);
  const bounds = unique(shown.map(a => a.lower_bound));
  const at = (reference, bound) => shown.find(a => a.reference === reference &&
      a.lower_bound === bound && (a.key_window === window || reference === 'pairwise'));
  draw('accuracy-chart', 'line', bounds,
       Object.keys(colours).map(reference => line(
           reference, bounds.map(b => at(reference, b)?.A_qk ?? null), colours[reference],
           dashes[reference], 4)),
       {x: 'bound of the gates', y: 'relative L2 error of A_qk',
        yMore: {beginAtZero: true, ticks: {color: css('--dim'),
                                           callback: v => v === 0 ? '0' : v.toExponential(1)}}});
  const names = ['reference', 'key_window', 'precision', 'lower_bound', 'A_qk', 'o'];
  tables.accuracy = () => [names, ...data.accuracy.map(a => names.map(n => a[n]))];
}

function setUpAccuracy() {
  const windows = unique(data.accuracy.map(a => a.key_window)).filter(w => w > 1);
  fillSelect(get('accuracy-window'), windows.sort((a, b) => a - b),
             windows.includes(32) ? 32 : windows.at(-1), w => `${w} keys`, drawAccuracy);
  const precisions = unique(data.accuracy.map(a => a.precision));
  fillSelect(get('accuracy-precision'), precisions, precisions[0], null, drawAccuracy);
}

// --- the audit -------------------------------------------------------------------------------

function drawAudit() {
  const inputs = ['q', 'k', 'v', 'g', 'beta', 'append'];
  const groups = new Map();
  for (const row of data.audit) {
    const key = [row.reference, row.key_window, row.precision].join(' ');
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(row);
  }
  const sum = (rows, name) => rows.reduce((total, r) => total + r[name], 0);
  fillTable(get('audit-table'),
            ['reference', '', 'window', 'operands', ...inputs, 'largest change'],
            [...groups.values()].map(rows => {
              const leaks = sum(rows, 'changed') > 0;
              const share = input => {
                const some = rows.filter(r => r.perturbed === input);
                const changed = sum(some, 'changed');
                return changed ? (100 * changed / sum(some, 'compared')).toPrecision(2) + ' %' : '–';
              };
              const largest = Math.max(...rows.map(r => r.absolute ?? Infinity));
              return [rows[0].reference, leaks ? {text: 'leaks', style: 'leaks'} : 'causal',
                      rows[0].key_window, rows[0].precision, ...inputs.map(share),
                      leaks ? largest.toExponential(1) : '–'];
            }));
  const names = ['backend', 'reference', 'key_window', 'precision', 'gate', 'chunk', 'perturbed',
                 'tensor', 'changed', 'compared', 'ulp', 'absolute', 'bound', 'above_bound'];
  tables.audit = () => [[...names, 'first_i', 'first_j'], ...data.audit.map(
      row => [...names.map(n => row[n]), ...(row.first_pair || ['', ''])])];
}

// ---------------------------------------------------------------------------------------------

function drawAll() {
  drawLeak();
  drawHeat();
  drawSizes();
  drawRange();
  drawAccuracy();
  drawAudit();
}

get('made').textContent = `libkda ${data.version}, backend ${data.backend}, ${data.isa}.` +
    (window.Chart ? '' : ' This build has no chart library: charts are tables.');
setUpHeat();
setUpRange();
setUpAccuracy();
drawAll();
for (const button of document.querySelectorAll('button[data-csv]')) {
  button.addEventListener('click', () => download(button.dataset.csv));
}
// Charts do not follow the style sheet by themselves.
window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawAll);
window.kdaTables = tables;
})();
