// The overview, the page of a pipeline, and that of a run.

import { airflow, Connection, html, useLedger } from "./api.js";
import { BatchPage } from "./batch.js";
import { Calendar, Timeline } from "./charts.js";
import {
  Breadcrumbs,
  count,
  instant,
  interval,
  Loaded,
  Rows,
  Section,
  State,
  Title,
  To,
} from "./parts.js";

const { useEffect, useState } = globalThis.React;
const { useNavigate } = globalThis.ReactRouterDOM;
const { Box, Field, HStack, NativeSelect, Progress, Text } = globalThis.ChakraUI;

const BATCH = [
  "Batch",
  (batch) => html`<${To} to=${{ batch: batch.batch_id }}>${batch.kind} ${batch.batch_id}<//>`,
];
const PIPELINE = [
  "Pipeline",
  (batch) => html`<${To} to=${{ pipeline: batch.pipeline }}>${batch.pipeline}<//>`,
];
const STATE = ["State", (batch) => html`<${State} of=${batch.state} />`];
const INTERVAL = ["Interval", interval];
const COUNTS = [
  ["Records", (batch) => count(batch.total), true],
  ["Acked", (batch) => count(batch.acked), true],
  ["Recovered", (batch) => count(batch.recovered), true],
  ["Failed", (batch) => count(batch.failed), true],
  ["Quarantined", (batch) => count(batch.quarantined), true],
  ["Pending", (batch) => count(batch.pending), true],
];

export const Batches = ({ label, batches, empty, pipeline = true }) =>
  html`<${Rows}
    label=${label}
    rows=${batches}
    empty=${empty}
    columns=${[BATCH, ...(pipeline ? [PIPELINE] : []), INTERVAL, STATE, ...COUNTS]}
  />`;

function Running({ batches }) {
  const done = ({ committed, steps }) =>
    html`<${HStack}>
      <${Progress.Root}
        value=${committed}
        max=${Math.max(steps, 1)}
        width="7em"
        size="sm"
        aria-label=${`${committed} of ${steps} steps`}
      >
        <${Progress.Track}><${Progress.Range} /><//>
      <//>
      ${committed} of ${steps} steps
    <//>`;
  const columns = [
    BATCH,
    PIPELINE,
    INTERVAL,
    ["Progress", done],
    ["Started", (batch) => instant(batch.opened_at)],
    ["Expires", (batch) => instant(batch.deadline)],
  ];
  return html`<${Rows}
    label="Running batches"
    rows=${batches}
    columns=${columns}
    empty="No batch is running."
  />`;
}

function Pipelines({ pipelines }) {
  const latest = (show) => (pipeline) => (pipeline.latest ? show(pipeline.latest) : "");
  const columns = [
    [
      "Pipeline",
      (pipeline) => html`<${To} to=${{ pipeline: pipeline.name }}>${pipeline.name}<//>`,
    ],
    ["Latest interval", latest(interval)],
    ["State", latest((batch) => html`<${State} of=${batch.state} />`)],
    [
      "Batch",
      latest((batch) => html`<${To} to=${{ batch: batch.batch_id }}>${batch.batch_id}<//>`),
    ],
  ];
  return html`<${Rows}
    label="Pipelines"
    rows=${pipelines}
    columns=${columns}
    empty="The ledger knows no pipeline whose DAG you may read. A pipeline is known once its first batch is opened."
  />`;
}

/** A calendar, and the same as a table for those who do not see it. */
function Intervals({ batches }) {
  if (!batches.length) return html`<${Text} color="fg.muted">It has read no interval yet.<//>`;
  return html`<${Calendar} batches=${batches} />
    <${Box} as="details" mt=${2}>
      <${Box} as="summary" cursor="pointer">All intervals as a table<//>
      <${Batches} label="All intervals" pipeline=${false} batches=${batches.toReversed()} />
    <//>`;
}

function IntervalsOf({ name }) {
  const answer = useLedger("pipeline", { name });
  return html`<${Loaded} answer=${answer}>
    ${({ intervals }) => html`<${Intervals} batches=${intervals} />`}
  <//>`;
}

const DAYS = "The days of the calendar are those of UTC.";

function Completeness({ pipelines, first }) {
  const [name, choose] = useState(first);
  return html`<${Section} title="Completeness by interval" note=${DAYS}>
    <${Field.Root} width="auto" mb=${2}>
      <${Field.Label}>Pipeline<//>
      <${NativeSelect.Root} size="sm" width="20em">
        <${NativeSelect.Field} value=${name} onChange=${(event) => choose(event.target.value)}>
          ${pipelines.map(
            (pipeline) => html`<option key=${pipeline.name}>${pipeline.name}</option>`,
          )}
        <//>
        <${NativeSelect.Indicator} />
      <//>
    <//>
    <${IntervalsOf} name=${name} />
  <//>`;
}

const ATTENTION =
  "Batches that need a decision: failed or unaccepted records above the limit, on hold, or abandoned.";

/** The choice of a ledger, where the pages show several. */
function Ledgers({ conn_id, conn_ids }) {
  const navigate = useNavigate();
  if (conn_ids.length < 2) return null;
  const choose = (event) =>
    navigate({ search: `?${new URLSearchParams({ conn_id: event.target.value })}` });
  return html`<${Field.Root} width="auto" mb=${2}>
    <${Field.Label}>Ledger<//>
    <${NativeSelect.Root} size="sm" width="20em">
      <${NativeSelect.Field} value=${conn_id} onChange=${choose}>
        ${conn_ids.map((name) => html`<option key=${name}>${name}</option>`)}
      <//>
      <${NativeSelect.Indicator} />
    <//>
  <//>`;
}

export function OverviewPage() {
  const answer = useLedger("overview");
  return html`<${Title}>Ledger<//>
    <${Loaded} answer=${answer}>
      ${({ pipelines, recent, open, waiting, conn_id, conn_ids }) => html`
        <${Ledgers} conn_id=${conn_id} conn_ids=${conn_ids} />
        <${Section} title="Needs attention" note=${ATTENTION}>
          <${Batches}
            label="Batches that need attention"
            batches=${waiting}
            empty="No batch needs attention."
          />
        <//>
        <${Section} title="Running"><${Running} batches=${open} /><//>
        ${pipelines.length > 0 &&
        html`<${Completeness}
          pipelines=${pipelines}
          first=${(waiting[0] ?? recent[0])?.pipeline ?? pipelines[0].name}
        />`}
        <${Section} title="Pipelines"><${Pipelines} pipelines=${pipelines} /><//>
        <${Section} title="Latest batches">
          ${recent.length > 0 && html`<${Timeline} batches=${recent} />`}
          <${Batches} label="Latest batches" batches=${recent} empty="There are none yet." />
        <//>
      `}
    <//>`;
}

const BAD = ["failed", "quarantined", "held", "abandoned"];

export function PipelinePage({ name }) {
  const answer = useLedger("pipeline", { name });
  return html`<${Breadcrumbs} here=${name} />
    <${Title}>${name}<//>
    <${Loaded} answer=${answer}>
      ${({ intervals, recent, conn_id }) => html`<${Connection.Provider} value=${conn_id}>
        <${Section} title="Completeness by interval" note=${DAYS}>
          <${Intervals} batches=${intervals} />
          <${Batches}
            label="Intervals that are not complete"
            pipeline=${false}
            batches=${intervals.filter((batch) => BAD.includes(batch.state)).toReversed()}
            empty=${intervals.length ? "No interval needs attention." : ""}
          />
        <//>
        <${Section} title="Latest batches">
          ${recent.length > 0 && html`<${Timeline} batches=${recent} />`}
          <${Batches}
            label="Latest batches"
            pipeline=${false}
            batches=${recent}
            empty="There are none yet."
          />
        <//>
      <//>`}
    <//>`;
}

/** The batch that a run looks after which opened none: its conf may name one. `knowsDag`: whether
 *  that is a batch of this page's ledger. */
function Other({ dagId, runId, knowsDag }) {
  const [answer, setAnswer] = useState({});
  useEffect(() => {
    airflow("GET", ["dags", dagId, "dagRuns", runId]).then(
      (data) => setAnswer({ data }),
      (error) => setAnswer({ error }),
    );
  }, [dagId, runId]);
  return html`<${Loaded} answer=${answer}>
    ${({ conf }) =>
      knowsDag && conf?.batch
        ? html`<${BatchPage} number=${conf.batch} />`
        : html`<${Text} color="fg.muted">This run has opened no batch.<//>`}
  <//>`;
}

/** The batch of a run; where a run has opened several, which they are. */
export function RunPage({ dagId, runId }) {
  const answer = useLedger("run", { dag_id: dagId, run_id: runId });
  const page = ({ batches, knows_dag }) => {
    if (!batches.length) {
      return html`<${Other} dagId=${dagId} runId=${runId} knowsDag=${knows_dag} />`;
    }
    if (batches.length === 1) return html`<${BatchPage} number=${batches[0].batch_id} />`;
    return html`<${Title}>Batches of this run<//>
      <${Batches} label="Batches of this run" batches=${batches} />`;
  };
  const within = (found) =>
    html`<${Connection.Provider} value=${found.conn_id}>${page(found)}<//>`;
  return html`<${Loaded} answer=${answer}>${within}<//>`;
}
