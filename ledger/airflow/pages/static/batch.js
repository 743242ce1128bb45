// The page of a batch.

import { Actions } from "./actions.js";
import { html, useLedger } from "./api.js";
import { Attempts, Replacement, Tag, Today } from "./family.js";
import { Graph } from "./graph.js";
import { OnHold, Ways } from "./hold.js";
import {
  Breadcrumbs,
  columnsOf,
  count,
  instant,
  interval,
  Loaded,
  Raw,
  records,
  Rows,
  runPath,
  Section,
  State,
  Title,
  To,
} from "./parts.js";

const { useState } = globalThis.React;
const { Alert, Badge, Box, Button, Field, HStack, Input, Link, NativeSelect, Text } =
  globalThis.ChakraUI;
const { Link: RouterLink } = globalThis.ReactRouterDOM;

const STATUSES = ["failed", "replaying", "recovered", "quarantined", "superseded"];

/** What the run reports: what is missing, and the commands that follow from it. */
function Report({ found }) {
  if (!found.because) return null;
  const status = found.can.length || found.batch.state === "abandoned" ? "warning" : "info";
  return html`<${Alert.Root} status=${status} my=${3}>
    <${Alert.Indicator} />
    <${Alert.Content}>
      <${Alert.Title}>${found.because}<//>
      ${found.waits.map((line) => html`<${Text} key=${line}>${line}<//>`)}
    <//>
  <//>`;
}

function Commands({ commands }) {
  if (!commands.length) return null;
  return html`<${Box} as="details" mt=${4}>
    <${Box} as="summary" cursor="pointer">The same at the command line<//>
    <${Raw} mt=${2}>${commands.map(([what, how]) => `# ${what.replace(/\s+/g, " ")}\n${how ?? ""}`).join("\n")}<//>
  <//>`;
}

const named = (row) => `${records(row.records)} at ${row.step}: ${row.reason}`;

function Failures({ failures, chosen, choose }) {
  const isChosen = (row) => chosen.step === row.step && chosen.reason === row.reason;
  const pick = (row) => choose(isChosen(row) ? {} : { step: row.step, reason: row.reason });
  const columns = [
    ["Step", (row) => row.step],
    ["Reason", (row) => html`<${Box} overflowWrap="anywhere">${row.reason}<//>`],
    ["Source", (row) => row.source],
    ["Records", (row) => count(row.records), true],
    ["Recovered", (row) => count(row.recovered), true],
    ["Still failed", (row) => count(row.failed), true],
    ["Quarantined", (row) => count(row.quarantined), true],
    ["Accepted", (row) => count(row.accepted), true],
    [
      "List",
      (row) =>
        html`<${Button}
          size="xs"
          variant="outline"
          aria-label=${`List ${named(row)}`}
          aria-pressed=${isChosen(row)}
          onClick=${() => pick(row)}
        >
          List ${records(row.records)}
        <//>`,
    ],
  ];
  return html`<${Rows}
    label="Failures by step and reason"
    rows=${failures}
    columns=${columns}
    empty="No record failed in this batch."
  />`;
}

const REST = [
  [
    "Content",
    (row) =>
      html`<${Box} fontFamily="mono" fontSize="xs" overflowWrap="anywhere" minW="16em" lineClamp="2">
        ${row.beginning ?? ""}
      <//>`,
  ],
  ["Step", (row) => row.step],
  ["Reason", (row) => html`<${Box} overflowWrap="anywhere" lineClamp="3">${row.reason}<//>`],
  ["Source", (row) => row.source],
  ["State", (row) => html`<${State} of=${row.status} />`],
  ["Failed attempts", (row) => count(row.attempts), true],
];

/** The records of the chosen failures, a page at a time. */
function Records({ number, chosen, choose }) {
  const [search, setSearch] = useState("");
  const [typed, setTyped] = useState("");
  const [status, setStatus] = useState("");
  const [pages, setPages] = useState([0]);
  const first = () => setPages([0]);
  const asked = { batch: number, ...chosen, search, status, after: pages.at(-1) };
  const answer = useLedger("failed", asked);
  const submit = (event) => {
    event.preventDefault();
    first();
    setSearch(typed);
  };
  return html`<${Section}
    title="Failed records"
    note=${[chosen.step && `at ${chosen.step}`, chosen.reason].filter(Boolean).join(": ") || null}
  >
    <${HStack} as="form" role="search" onSubmit=${submit} mb=${2} align="end" wrap="wrap">
      <${Field.Root} width="20em">
        <${Field.Label}>Number, reason or content<//>
        <${Input}
          size="sm"
          value=${typed}
          onChange=${(event) => setTyped(event.target.value)}
        />
      <//>
      <${Field.Root} width="10em">
        <${Field.Label}>State<//>
        <${NativeSelect.Root} size="sm">
          <${NativeSelect.Field}
            value=${status}
            onChange=${(event) => {
              first();
              setStatus(event.target.value);
            }}
          >
            <option value="">any</option>
            ${STATUSES.map((name) => html`<option key=${name}>${name}</option>`)}
          <//>
          <${NativeSelect.Indicator} />
        <//>
      <//>
      <${Button} size="sm" type="submit">Search<//>
      ${(chosen.step || chosen.reason) &&
      html`<${Button} size="sm" variant="outline" onClick=${() => choose({})}>All failures<//>`}
    <//>
    <${Loaded} answer=${answer}>
      ${({ records: rows, next }) => html`
        <${Rows}
          label="Failed records"
          rows=${rows}
          columns=${columnsOf(rows, REST)}
          empty="No record matches."
        />
        <${HStack} mt=${2}>
          <${Button}
            size="sm"
            variant="outline"
            disabled=${pages.length === 1}
            onClick=${() => setPages(pages.slice(0, -1))}
          >
            Previous
          <//>
          <${Button}
            size="sm"
            variant="outline"
            disabled=${next === null}
            onClick=${() => setPages([...pages, next])}
          >
            Next
          <//>
          <${Text} color="fg.muted" fontSize="sm">Page ${pages.length}<//>
        <//>
      `}
    <//>
  <//>`;
}

const StepState = ({ step }) =>
  step.ran_in
    ? html`ran in <${To} to=${{ batch: step.ran_in }}>batch ${step.ran_in}<//>`
    : html`<${State} of=${step.state ?? "not run"} />`;

const STEPS = [
  ["Step", (step) => step.name],
  ["Kind", (step) => (step.after ? `${step.kind}, after the settlement` : step.kind)],
  ["State", (step) => html`<${StepState} step=${step} />`],
  ["Rows in", (step) => (step.input === null ? "" : count(step.input)), true],
  ["Rows out", (step) => (step.output === null ? "" : count(step.output)), true],
  [
    "Dropped",
    (step) => step.dropped.map((drop) => `${count(drop.rows)} ${drop.reason}`).join(", "),
  ],
  ["Duplicates", (step) => (step.duplicates ? count(step.duplicates) : ""), true],
  ["Records failed", (step) => (step.lost ? count(step.lost) : ""), true],
  ["Seconds", (step) => (step.seconds === null ? "" : step.seconds.toFixed(1)), true],
];

const PUBLICATIONS = [
  ["Sink", (publication) => publication.sink],
  ["State", (publication) => html`<${State} of=${publication.state} />`],
  [
    "Rows",
    (publication) => (publication.rows === null ? "not known yet" : count(publication.rows)),
    true,
  ],
  [
    "Withheld",
    (publication) => (publication.withheld_rows ? count(publication.withheld_rows) : ""),
    true,
  ],
  ["Published", (publication) => instant(publication.published_at)],
];

function Found({ found, reload }) {
  const { batch, steps, edges, failures } = found;
  const [chosen, setChosen] = useState({});
  // The list is requested again when another choice is made, or the batch has changed.
  const listed = JSON.stringify([chosen, batch.acked, batch.failed, batch.quarantined]);
  const run = batch.run_id.replace(/#reprocess$/, "");
  return html`<${Box}>
    <${Breadcrumbs}
      above=${[[batch.pipeline, { pipeline: batch.pipeline }]]}
      here=${`Batch ${batch.batch_id}`}
    />
    <${Title}>Batch ${batch.batch_id} of ${batch.pipeline}<//>
    <${HStack} mt=${1} wrap="wrap">
      <${Tag} found=${found} />
      <${Badge} variant="outline">${batch.kind}<//>
      <${Text}>${interval(batch)}<//>
      ${batch.dag_id &&
      html`<${Link} asChild=${true} color="fg.info">
        <${RouterLink} to=${runPath(batch.dag_id, run)}>run ${run}<//>
      <//>`}
    <//>
    <${Replacement} batch=${batch} />
    <${Today} found=${found} />
    <${Report} found=${found} />
    <${Ways} found=${found} />
    <${Actions} found=${found} chosen=${chosen} reload=${reload} />
    <${Attempts} family=${found.family} />
    <${Section}
      title="Where the rows went"
      note="Red steps lost records that are still missing. Select a step to list what failed there."
    >
      <${Graph}
        steps=${steps}
        edges=${edges}
        chosen=${chosen.step ?? null}
        choose=${(step) => setChosen(step ? { step } : {})}
      />
    <//>
    ${batch.status === "held"
      ? html`<${OnHold} found=${found} chosen=${chosen} choose=${setChosen} />`
      : html`<${Section} title="Failures">
      <${Failures} failures=${failures} chosen=${chosen} choose=${setChosen} />
      ${found.groups > failures.length &&
      html`<${Text} color="fg.muted">
        ${count(found.groups - failures.length)} more reasons, of fewer records each
      <//>`}
    <//>`}
    ${failures.length > 0 &&
    html`<${Records}
      key=${listed}
      number=${batch.batch_id}
      chosen=${chosen}
      choose=${setChosen}
    />`}
    <${Section} title="Published">
      <${Rows}
        label="What the sinks have published"
        rows=${found.publications}
        columns=${PUBLICATIONS}
        empty="Nothing is decided yet."
      />
    <//>
    <${Section} title="Steps">
      <${Rows} label="Steps" rows=${steps} columns=${STEPS} empty="There are none." />
    <//>
    ${batch.status !== "held" && html`<${Commands} commands=${found.commands} />`}
  <//>`;
}

export function BatchPage({ number }) {
  const answer = useLedger("batch", { number });
  return html`<${Loaded} answer=${answer} page=${`Batch ${number}`}>
    ${(found) => html`<${Found} key=${number} found=${found} reload=${answer.reload} />`}
  <//>`;
}
