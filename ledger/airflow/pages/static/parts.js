// What several pages are made of.

import { html, useSearch } from "./api.js";

const { Fragment, useEffect, useRef } = globalThis.React;
const { Link: RouterLink } = globalThis.ReactRouterDOM;
const { Alert, Badge, Box, Breadcrumb, Heading, Link, Spinner, Table, Text } = globalThis.ChakraUI;

export { instant, interval } from "./times.js";

/** Of each state its palette and what it means. */
export const STATES = {
  complete: ["green", "every record is processed to every sink"],
  tolerated: ["green", "fewer records are missing than the pipeline tolerates"],
  open: ["blue", "its steps are running"],
  unpublished: ["blue", "decided, and not published by every sink yet"],
  failed: ["red", "records failed and have not been replayed"],
  quarantined: ["orange", "records are quarantined, and not accepted"],
  held: ["purple", "nothing is decided until somebody has looked"],
  "on hold: not decided": ["purple", "nothing is decided until somebody has looked"],
  settled: ["gray", "each of its records is decided"],
  abandoned: ["gray", "it never finished, and will not"],
  superseded: ["gray", "another batch has read its interval again"],
  replaying: ["blue", "a replay is running"],
  recovered: ["green", "a replay has processed it to every sink"],
  acked: ["green", "processed to every sink"],
  pending: ["blue", "not decided yet"],
  committed: ["green", "done"],
  running: ["blue", "running"],
  "not run": ["gray", "nothing of it has run yet"],
  fenced: ["gray", "a newer attempt took its place"],
  queued: ["gray", "it waits for Airflow to run it"],
  success: ["green", "done"],
  published: ["green", "visible to readers"],
  replaced: ["gray", "a later batch took its place"],
  decided: ["blue", "to be published"],
  ready: ["blue", "to be published"],
};

const WORDS = { held: "on hold", open: "running" };

/** A state in a word, for people. */
export const word = (state) => WORDS[state] ?? state;

/** `children`: the text instead of the state's own word. */
export function State({ of, children }) {
  const [palette, meaning] = STATES[of] ?? ["gray", ""];
  return html`<${Badge} colorPalette=${palette} title=${meaning}>${children ?? word(of)}<//>`;
}

/** A color of the theme, for SVG. */
export const token = (name) => `var(--chakra-colors-${name}, currentColor)`;

export const records = (number) => `${count(number)} record${number === 1 ? "" : "s"}`;

export const count = (number) => (number ?? 0).toLocaleString("en");

/** A link within the ledger's pages: `to` are the parameters of the page. */
export function To({ to, children, ...rest }) {
  const search = useSearch()(to);
  return html`<${Link} asChild=${true} color="fg.info" ...${rest}>
    <${RouterLink} to=${{ search }}>${children}<//>
  <//>`;
}

/** Airflow's own page of a run. */
export const runPath = (dagId, runId) =>
  `/dags/${encodeURIComponent(dagId)}/runs/${encodeURIComponent(runId)}`;

/** Where a page stands, and the way back: of each page above it, its name and its parameters. */
export function Breadcrumbs({ above = [], here }) {
  const trail = [["Ledger", {}], ...above];
  return html`<${Breadcrumb.Root} size="sm" mb=${2} aria-label="Breadcrumbs">
    <${Breadcrumb.List}>
      ${trail.map(
        ([name, to]) =>
          html`<${Fragment} key=${name}>
            <${Breadcrumb.Item}><${To} to=${to}>${name}<//><//>
            <${Breadcrumb.Separator} />
          <//>`,
      )}
      <${Breadcrumb.Item}><${Breadcrumb.CurrentLink}>${here}<//><//>
    <//>
  <//>`;
}

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

/** A key in one line: its columns, where it has several. */
function keyText(text) {
  const key = JSON.parse(text);
  const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  if (key === null || typeof key !== "object" || Array.isArray(key)) return shown(key);
  const pairs = Object.entries(key);
  if (pairs.length === 1) return shown(pairs[0][1]);
  return pairs.map(([name, value]) => `${name} ${shown(value)}`).join(", ");
}

const RECORD = [
  "Record",
  (row) => html`<${To} to=${{ record: row.root_id }}>${row.message_id}<//>`,
];
const KEY = [
  "Key",
  (row) => html`<${Box} whiteSpace="nowrap">${row.key === null ? "" : keyText(row.key)}<//>`,
];
/** The columns of a list of records: number and key, where one has a key, before the `rest`. */
export const columnsOf = (rows, rest) => [
  RECORD,
  ...(rows.some((row) => row.key !== null) ? [KEY] : []),
  ...rest,
];

export function Problem({ error, title }) {
  return html`<${Alert.Root} status="error" role="alert" my=${3}>
    <${Alert.Indicator} />
    <${Alert.Content}>
      ${title && html`<${Alert.Title}>${title}<//>`}
      <${Alert.Description} whiteSpace="pre-wrap">${error.message}<//>
    <//>
  <//>`;
}

/** In the place of a page that cannot be shown. `name`: the page. */
export const NoPage = ({ name, error }) =>
  html`<${Breadcrumbs} here=${name} />
    <${Title}>${name}<//>
    <${Problem} error=${error} />
    <${Text}><${To} to=${{}}>Back to the ledger<//><//>`;

/** What is asked for, once it is there. `page`: the name of the page that shows nothing else. */
export function Loaded({ answer, page, children }) {
  if (answer.error && page) return html`<${NoPage} name=${page} error=${answer.error} />`;
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
