// What several pages are made of.

import { html } from "./api.js";

const { useEffect, useRef } = globalThis.React;
const { Link: RouterLink } = globalThis.ReactRouterDOM;
const { Alert, Badge, Box, Heading, Link, Spinner, Table, Text } = globalThis.ChakraUI;

/** Of each state its palette and what it means. */
export const STATES = {
  complete: ["green", "every record is processed to every sink"],
  tolerated: ["green", "fewer records are missing than the pipeline tolerates"],
  open: ["blue", "under way"],
  unpublished: ["blue", "decided, and not published by every sink yet"],
  failed: ["red", "records failed and have not been replayed"],
  quarantined: ["orange", "records are quarantined, and nobody has accepted that"],
  held: ["purple", "nothing is decided until somebody has looked"],
  abandoned: ["gray", "it never finished, and will not"],
  superseded: ["gray", "another batch has read its interval again"],
  replaying: ["blue", "a replay is under way"],
  recovered: ["green", "a replay has processed it to every sink"],
  acked: ["green", "processed to every sink"],
  pending: ["blue", "not decided yet"],
  committed: ["green", "done"],
  running: ["blue", "running"],
  fenced: ["gray", "a newer attempt took its place"],
  published: ["green", "visible to readers"],
  replaced: ["gray", "a later batch took its place"],
  decided: ["blue", "to be published"],
  ready: ["blue", "to be published"],
};

export function State({ of }) {
  const [palette, meaning] = STATES[of] ?? ["gray", ""];
  return html`<${Badge} colorPalette=${palette} title=${meaning}>${of === "held" ? "on hold" : of}<//>`;
}

/** A color of the theme, for SVG. */
export const token = (name) => `var(--chakra-colors-${name}, currentColor)`;

export const records = (number) => `${count(number)} record${number === 1 ? "" : "s"}`;

export const count = (number) => (number ?? 0).toLocaleString("en");

const MINUTE = { dateStyle: "medium", timeStyle: "short", timeZone: "UTC" };

/** A moment in UTC, as intervals are. */
export const moment = (iso) =>
  iso ? `${new Intl.DateTimeFormat("en-GB", MINUTE).format(new Date(iso))} UTC` : "";

const midnight = (iso) => new Date(iso).getTime() % 86_400_000 === 0;

/** An interval: its days, where it begins and ends at midnight. */
export function interval(batch) {
  const { interval_start: start, interval_end: end } = batch;
  if (!midnight(start) || !midnight(end)) return `${moment(start)} to ${moment(end)}`;
  const days = (new Date(end) - new Date(start)) / 86_400_000;
  return days === 1 ? start.slice(0, 10) : `${start.slice(0, 10)} to ${end.slice(0, 10)}`;
}

/** A link within the ledger's pages: `to` are the parameters of the page. */
export function To({ to, children, ...rest }) {
  const search = `?${new URLSearchParams(to)}`;
  return html`<${Link} asChild=${true} colorPalette="blue" ...${rest}>
    <${RouterLink} to=${{ search }}>${children}<//>
  <//>`;
}

/** Airflow's own page of a run. */
export const runPath = (dagId, runId) =>
  `/dags/${encodeURIComponent(dagId)}/runs/${encodeURIComponent(runId)}`;

/** A heading that takes the focus, so that a screen reader reads the new page. */
export function Title({ children }) {
  const heading = useRef(null);
  useEffect(() => heading.current?.focus(), []);
  return html`<${Heading} as="h1" size="xl" ref=${heading} tabIndex=${-1} outline="none">
    ${children}
  <//>`;
}

export function Section({ title, note, children }) {
  return html`<${Box} as="section" aria-label=${title} mt=${6}>
    <${Heading} as="h2" size="md" mb=${1}>${title}<//>
    ${note && html`<${Text} color="fg.muted" fontSize="sm" mb=${2}>${note}<//>`}
    ${children}
  <//>`;
}

/** Rows as a table. `columns`: of each its head, what it shows of a row, whether it is a number. */
export function Rows({ label, columns, rows, empty }) {
  if (!rows.length) return html`<${Text} color="fg.muted">${empty}<//>`;
  return html`<${Box} overflowX="auto" tabIndex=${0} role="group" aria-label=${label}>
    <${Table.Root} size="sm" aria-label=${label}>
      <${Table.Header}>
        <${Table.Row}>
          ${columns.map(
            ([head, , number]) =>
              html`<${Table.ColumnHeader}
                key=${head}
                scope="col"
                textAlign=${number ? "end" : "start"}
              >
                ${head}
              <//>`,
          )}
        <//>
      <//>
      <${Table.Body}>
        ${rows.map(
          (row, place) =>
            html`<${Table.Row} key=${place}>
              ${columns.map(
                ([head, cell, number]) =>
                  html`<${Table.Cell} key=${head} textAlign=${number ? "end" : "start"}>
                    ${cell(row)}
                  <//>`,
              )}
            <//>`,
        )}
      <//>
    <//>
  <//>`;
}

export function Problem({ error, title }) {
  return html`<${Alert.Root} status="error" role="alert" my=${3}>
    <${Alert.Indicator} />
    <${Alert.Content}>
      ${title && html`<${Alert.Title}>${title}<//>`}
      <${Alert.Description} whiteSpace="pre-wrap">${error.message}<//>
    <//>
  <//>`;
}

/** What is asked for, once it is there. */
export function Loaded({ answer, children }) {
  if (answer.error) return html`<${Problem} error=${answer.error} />`;
  if (answer.data === undefined) {
    return html`<${Box} role="status" p=${4}><${Spinner} size="sm" mr=${2} />Loading …<//>`;
  }
  return children(answer.data);
}

/** Text as it is, in the type of a terminal; long lines are wrapped. */
export function Raw({ children, ...rest }) {
  return html`<${Box}
    as="pre"
    fontFamily="mono"
    fontSize="sm"
    whiteSpace="pre-wrap"
    overflowWrap="anywhere"
    bg="bg.subtle"
    borderRadius="md"
    p=${3}
    maxH="24em"
    overflowY="auto"
    tabIndex=${0}
    ...${rest}
  >
    ${children}
  <//>`;
}
