// The graph of a batch, placed by dagre: how many rows went along each edge, where they were lost.

import dagre from "./vendor/dagre.js";
import { html } from "./api.js";
import { count, records, token } from "./parts.js";

const { useLayoutEffect, useMemo, useRef, useState } = globalThis.React;
const { Box } = globalThis.ChakraUI;

const WIDTH = 196; // pixels
const LINE = 16;
const MOST = 30; // characters of a line
const SMALLEST = 11 / 12; // of its size, for the text has 12 px
const SMALL = { fontSize: "12px" };
const BOLD = { fontSize: "12px", fontWeight: 600 };

/** The lines of a step's box below its name. */
function lines(step) {
  const state = step.ran_in ? `ran in batch ${step.ran_in}` : (step.state ?? "not run");
  const seconds = step.seconds === null ? "" : `, ${step.seconds.toFixed(1)} s`;
  const found = [`${step.kind}, ${state}${seconds}`];
  if (step.output !== null) found.push(`${count(step.output)} rows out`);
  if (step.duplicates) found.push(`${count(step.duplicates)} duplicates dropped`);
  for (const drop of step.dropped) found.push(`${count(drop.rows)} dropped: ${drop.reason}`);
  return found;
}

/** How many records were lost, or failed, and how many of these are missing now. */
function loss({ lost, missing }, what) {
  if (missing === lost) return `${records(lost)} ${what}`;
  const total = `${count(lost)} ${what.replace(" here", "")}`;
  return missing ? `${total}, ${count(missing)} still missing` : `${total}, none missing now`;
}

/** The lines of an edge: rows that were passed on, whether they were read, and what it cost. */
function words({ rows, read, lost, missing }) {
  const found = [];
  if (rows !== null && rows !== undefined) found.push(`${count(rows)} rows${read ? "" : ", unread"}`);
  if (lost) found.push(loss({ lost, missing }, "lost"));
  return found;
}

const shortened = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function placed(steps, edges, rankdir) {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir, nodesep: 24, ranksep: 24, marginx: 8, marginy: 8 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const step of steps) {
    const height = 30 + LINE * (lines(step).length + (step.lost ? 1 : 0));
    graph.setNode(step.name, { step, width: WIDTH, height });
  }
  for (const edge of edges) {
    const labels = words(edge);
    const width = 12 + 6.4 * Math.max(0, ...labels.map((line) => Math.min(line.length, MOST)));
    const height = LINE * labels.length + 6;
    graph.setEdge(edge.from, edge.to, { edge, labels, width, height, labelpos: "c" });
  }
  dagre.layout(graph);
  return graph;
}

function Step({ x, y, width, height, step, chosen, choose }) {
  const lost = step.lost > 0;
  const red = step.missing > 0;
  const pick = () => choose(chosen ? null : step.name);
  return html`<g
    transform=${`translate(${x - width / 2}, ${y - height / 2})`}
    role=${lost ? "button" : undefined}
    tabIndex=${lost ? 0 : undefined}
    aria-pressed=${lost ? chosen : undefined}
    aria-label=${lost ? `${step.name}: ${loss(step, "failed here")}. List them` : undefined}
    style=${lost ? { cursor: "pointer" } : undefined}
    onClick=${lost ? pick : undefined}
    onKeyDown=${lost
      ? (event) => {
          if (event.key !== "Enter" && event.key !== " ") return;
          event.preventDefault();
          pick();
        }
      : undefined}
  >
    <title>${step.name}</title>
    <rect
      width=${width}
      height=${height}
      rx="6"
      fill=${token(red ? "red-subtle" : "bg-panel")}
      stroke=${token(red ? "red-solid" : "fg-subtle")}
      strokeWidth=${chosen ? 3 : 1.2}
      strokeDasharray=${step.after ? "5 3" : undefined}
    />
    <text x="10" y="20" style=${{ fontSize: "13px", fontWeight: 600 }} fill=${token("fg")}>
      ${shortened(step.name, 26)}
    </text>
    ${lines(step).map(
      (line, place) =>
        html`<text
          key=${line}
          x="10"
          y=${38 + LINE * place}
          style=${SMALL}
          fill=${token("fg-muted")}
        >
          <title>${line}</title>
          ${shortened(line, MOST)}
        </text>`,
    )}
    ${lost &&
    html`<text
      x="10"
      y=${38 + LINE * lines(step).length}
      style=${red ? BOLD : SMALL}
      fill=${token(red ? "red-fg" : "fg-muted")}
    >
      ${loss(step, "failed here")}
    </text>`}
  </g>`;
}

function Edge({ points, edge, labels, x, y, width, height }) {
  const red = edge.missing > 0;
  const path = points.map((point, place) => `${place ? "L" : "M"}${point.x},${point.y}`).join(" ");
  return html`<g>
    <path
      d=${path}
      fill="none"
      stroke=${token(red ? "red-solid" : "fg-subtle")}
      strokeWidth=${red ? 2 : 1.2}
      markerEnd=${`url(#${red ? "ledger-arrow-lost" : "ledger-arrow"})`}
    />
    <rect
      x=${x - width / 2}
      y=${y - height / 2}
      width=${width}
      height=${height}
      rx="4"
      fill=${token("bg")}
    />
    ${labels.map(
      (line, place) =>
        html`<text
          key=${line}
          x=${x}
          y=${y - height / 2 + 14 + LINE * place}
          style=${place > 0 && red ? BOLD : SMALL}
          textAnchor="middle"
          fill=${token(place > 0 && red ? "red-fg" : "fg-muted")}
        >
          <title>${line}</title>
          ${shortened(line, MOST)}
        </text>`,
    )}
  </g>`;
}

function Arrow({ id, color }) {
  return html`<marker
    id=${id}
    viewBox="0 0 8 8"
    refX="8"
    refY="4"
    markerWidth="8"
    markerHeight="8"
    orient="auto"
  >
    <path d="M0,0 L8,4 L0,8 z" fill=${color} />
  </marker>`;
}

/** The width of an element, as it changes; 0 until it is known. */
function useWidth() {
  const place = useRef(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(entry.contentRect.width));
    watch.observe(place.current);
    return () => watch.disconnect();
  }, []);
  return [place, width];
}

/** From left to right where that fits, its text legible; else from top to bottom, if it is less wide
 *  so. */
function useGraph(steps, edges, room) {
  const [across, down] = useMemo(
    () => ["LR", "TB"].map((direction) => placed(steps, edges, direction)),
    [steps, edges],
  );
  const least = across.graph().width * SMALLEST;
  return least > room && down.graph().width < across.graph().width ? down : across;
}

/** `chosen`: the step whose failures are listed; `choose`: called with another, or null. */
export function Graph({ steps, edges, chosen, choose }) {
  const [place, room] = useWidth();
  const graph = useGraph(steps, edges, room);
  const { width, height } = graph.graph();
  return html`<${Box}
    ref=${place}
    overflowX="auto"
    borderWidth="1px"
    borderRadius="md"
    p=${2}
    bg="bg"
  >
    <svg
      viewBox=${`0 0 ${width} ${height}`}
      style=${{ width: "100%", maxWidth: width, minWidth: width * SMALLEST }}
      role="group"
      aria-label="The steps of the batch and the rows between them"
    >
      <defs>
        <${Arrow} id="ledger-arrow" color=${token("fg-subtle")} />
        <${Arrow} id="ledger-arrow-lost" color=${token("red-solid")} />
      </defs>
      ${graph.edges().map((ends) => {
        const edge = graph.edge(ends);
        return html`<${Edge} key=${`${ends.v} to ${ends.w}`} ...${edge} />`;
      })}
      ${graph.nodes().map((name) => {
        const at = graph.node(name);
        return html`<${Step} key=${name} ...${at} chosen=${chosen === name} choose=${choose} />`;
      })}
    </svg>
  <//>`;
}
