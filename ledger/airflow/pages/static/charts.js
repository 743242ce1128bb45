// Charts, drawn by Observable Plot. Their data stands in tables beside them, too.

import "./vendor/d3.min.js";
import "./vendor/plot.umd.min.js";
import { html, useSearch } from "./api.js";
import { count, interval, token, word } from "./parts.js";

const { useEffect, useRef } = globalThis.React;
const { useNavigate } = globalThis.ReactRouterDOM;
const { Box } = globalThis.ChakraUI;
const { Plot, d3 } = globalThis;

const COLORS = {
  complete: token("green-solid"),
  tolerated: token("green-muted"),
  open: token("blue-solid"),
  unpublished: token("blue-muted"),
  failed: token("red-solid"),
  quarantined: token("orange-solid"),
  held: token("purple-solid"),
  abandoned: token("gray-solid"),
};
const PARTS = { acked: "complete", failed: "failed", quarantined: "quarantined", pending: "open" };
const STYLE = { fontSize: "12px", fontFamily: "inherit", overflow: "visible" };
const color = (names, range) => ({ domain: names, range, legend: true, tickFormat: word });

/** A plot as a figure of one label; a click on what has a batch leads there. Its parts take no
 *  focus: the tables beside it have the same links. */
function Figure({ label, options }) {
  const place = useRef(null);
  const navigate = useNavigate();
  const search = useSearch();
  useEffect(() => {
    const drawn = Plot.plot(options);
    for (const link of drawn.querySelectorAll("a")) {
      link.setAttribute("tabindex", "-1");
      const to = Object.fromEntries(new URLSearchParams(link.getAttribute("href")));
      link.setAttribute("href", search(to));
    }
    place.current.replaceChildren(drawn);
    return () => drawn.remove();
  }, [options]);
  const follow = (event) => {
    const link = event.target.closest("a");
    if (!link || event.metaKey || event.ctrlKey) return;
    event.preventDefault();
    navigate({ search: link.getAttribute("href") });
  };
  return html`<${Box} as="figure" aria-label=${label} overflowX="auto" onClick=${follow}>
    <div ref=${place} aria-hidden="true" />
  <//>`;
}

const link = (batch) => `?batch=${batch.batch_id}`;
const description = (batch) =>
  `${interval(batch)}: ${word(batch.state)}\n` +
  `batch ${batch.batch_id}: ${count(batch.acked)} of ${count(batch.total)} acked` +
  (batch.failed ? `, ${count(batch.failed)} failed` : "") +
  (batch.quarantined ? `, ${count(batch.quarantined)} quarantined` : "");

const WEEKDAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const MONTHS = d3.range(12).map((month) => d3.utcFormat("%b")(new Date(Date.UTC(2000, month))));

/** Rows and columns of a calendar of intervals that long. */
function grid(hours) {
  if (hours >= 24 * 27) {
    const y = (day) => String(day.getUTCFullYear());
    return { x: (day) => MONTHS[day.getUTCMonth()], y, columns: MONTHS, size: 34 };
  }
  if (hours >= 20) {
    const x = (day) => d3.utcMonday(day).toISOString().slice(0, 10);
    return { x, y: (day) => WEEKDAYS[(day.getUTCDay() + 6) % 7], rows: WEEKDAYS, size: 20 };
  }
  const y = (day) => day.toISOString().slice(0, 10);
  return { x: (day) => day.getUTCHours(), y, columns: d3.range(24), size: 18 };
}

const MOST_WEEKS = 106; // of two years

/** All weeks from the first to the last, by their Mondays; those alone, if they lie far apart. */
function weeks(mondays) {
  const [first, last] = d3.extent(mondays).map((monday) => new Date(monday));
  const all = d3.utcMonday.range(first, d3.utcDay.offset(last, 1));
  if (all.length > MOST_WEEKS) return [...new Set(mondays)].sort();
  return all.map((monday) => monday.toISOString().slice(0, 10));
}

// The worst first: of several intervals in one place that one gives the color.
const WORST = [
  "held",
  "failed",
  "abandoned",
  "quarantined",
  "open",
  "unpublished",
  "tolerated",
  "complete",
];

/** The batches of a calendar by place, each place with its worst state. */
function places(batches, x, y) {
  const found = d3.groups(batches, x, y).flatMap(([, column]) => column.map(([, group]) => group));
  return found.map((group) => {
    const worst = d3.least(group, (batch) => WORST.indexOf(batch.state));
    const title = group.length > 8 ? `${group.length} intervals, worst:\n${description(worst)}` : null;
    return { ...worst, title: title ?? group.map(description).join("\n") };
  });
}

/** Whether each interval is complete, as a calendar: of days by week, of hours by day, of months by
 *  year. */
export function Calendar({ batches }) {
  const hours = d3.median(
    batches,
    (batch) => (new Date(batch.interval_end) - new Date(batch.interval_start)) / 3_600_000,
  );
  const { x, y, columns, rows, size } = grid(hours);
  const start = (batch) => new Date(batch.interval_start);
  const across = columns ?? (rows ? weeks(batches.map((batch) => x(start(batch)))) : []);
  const down = rows ?? [...new Set(batches.map((batch) => y(start(batch))))];
  const cells = places(
    batches,
    (batch) => x(start(batch)),
    (batch) => y(start(batch)),
  );
  const states = Object.keys(COLORS).filter((state) =>
    batches.some((batch) => batch.state === state),
  );
  const firsts = across.filter((week) => columns || /-0[1-7]$/.test(week));
  const options = {
    style: STYLE,
    width: 70 + across.length * size,
    height: 30 + down.length * size,
    marginLeft: 70,
    marginTop: 24,
    marginRight: 0,
    marginBottom: 6,
    x: { domain: across, axis: "top", label: null, ticks: firsts, tickSize: 0 },
    y: { domain: down, label: null, tickSize: 0 },
    color: color(
      states,
      states.map((state) => COLORS[state]),
    ),
    marks: [
      Plot.cell(cells, {
        x: (batch) => x(start(batch)),
        y: (batch) => y(start(batch)),
        fill: "state",
        inset: 1,
        rx: 2,
        href: link,
        title: "title",
      }),
    ],
  };
  if (!columns) options.x.tickFormat = (week) => d3.utcFormat("%b")(new Date(week));
  const sums = states.map(
    (state) => `${batches.filter((batch) => batch.state === state).length} ${word(state)}`,
  );
  return html`<${Figure}
    label=${`Calendar of ${batches.length} ${batches.length === 1 ? "interval" : "intervals"}: ${sums.join(", ")}`}
    options=${options}
  />`;
}

/** What became of the records of each batch, oldest first. */
export function Timeline({ batches }) {
  if (!batches.some((batch) => batch.total)) return null;
  const states = Object.keys(PARTS);
  const bars = batches
    .toReversed()
    .flatMap((batch) => states.map((state) => ({ batch, state, records: batch[state] })));
  const options = {
    style: STYLE,
    width: 80 + batches.length * 16,
    height: 180,
    marginLeft: 60,
    x: { label: null, domain: batches.map((batch) => batch.batch_id).toReversed(), axis: null },
    y: { label: "records", tickFormat: "~s", grid: true },
    color: color(
      states,
      states.map((state) => COLORS[PARTS[state]]),
    ),
    marks: [
      Plot.barY(bars, {
        x: (bar) => bar.batch.batch_id,
        y: "records",
        fill: "state",
        href: (bar) => link(bar.batch),
        title: (bar) => `${bar.batch.pipeline}, ${description(bar.batch)}`,
      }),
      Plot.ruleY([0]),
    ],
  };
  return html`<${Figure}
    label=${`The latest ${batches.length} batches by what became of their records`}
    options=${options}
  />`;
}
