// A batch with its replays: what became of its records by today, what each attempt did.

import { html } from "./api.js";
import { count, instant, records, Rows, Section, State, To } from "./parts.js";

const { Alert, Stat, Text, Wrap } = globalThis.ChakraUI;

const isDecided = (batch) => ["settled", "superseded"].includes(batch.status);

/** The counts of a family, each with a note where it needs one. */
function counts(today) {
  const all = [
    ["records", today.total],
    ["acked", today.acked, today.recovered && `${count(today.recovered)} recovered by a replay`],
    ["still failed", today.failed, today.replaying && `${count(today.replaying)} being replayed`],
    ["quarantined", today.quarantined, today.accepted && `${count(today.accepted)} accepted`],
  ];
  if (today.superseded) all.push(["superseded", today.superseded]);
  if (today.pending) all.push(["pending", today.pending]);
  return all;
}

/** What became of the records of a batch and its replays, by now. */
export function Today({ found }) {
  const { batch, family, today } = found;
  const replay = batch.batch_id !== today.batch_id;
  return html`<${Section}
    title="Today"
    note=${family.length > 1 ? `Batch ${today.batch_id} with its replays.` : null}
  >
    <${Wrap} gap=${8} my=${1}>
      ${counts(today).map(
        ([name, number, of]) =>
          html`<${Stat.Root} key=${name} flex="none">
            <${Stat.Label}>${name}<//>
            <${Stat.ValueText}>${count(number)}<//>
            ${of ? html`<${Stat.HelpText} as="dd">${of}<//>` : null}
          <//>`,
      )}
    <//>
    ${replay &&
    html`<${Text}>
      This is a replay of <${To} to=${{ batch: today.batch_id }}>batch ${today.batch_id}<//>.
    <//>`}
  <//>`;
}

/** The tag of a batch: after a replay it shows how many records of it are failed still. */
export const Tag = ({ found: { batch, family } }) =>
  batch.state === "failed" && family.length > 1
    ? html`<${State} of="failed">${count(batch.failed)} still failed<//>`
    : html`<${State} of=${batch.state} />`;

/** The batch that reads the interval of this one instead, and the one whose interval this reads. */
export function Replacement({ batch }) {
  const { replaced_by: by, replaces_batch_id: of, superseded } = batch;
  if (!by && !of) return null;
  const link = (number) => html`<${To} to=${{ batch: number }}>batch ${number}<//>`;
  return html`<${Alert.Root} status="info" my=${3}>
    <${Alert.Indicator} />
    <${Alert.Content} display="block">
      ${by &&
      html`<${Text}>
        ${batch.status === "superseded"
          ? html`Superseded: ${link(by)} has read its interval again. ${SUPERSEDED(superseded)}`
          : html`${link(by)} is to read its interval again.`}
      <//>`}
      ${of && html`<${Text}>It reads the interval of ${link(of)} again.<//>`}
    <//>
  <//>`;
}

const SUPERSEDED = (number) =>
  number
    ? `${records(number)} of this batch had failed by then; nothing replays ${number === 1 ? "it" : "them"}.`
    : "No record of this batch was failed by then.";

const ATTEMPTS = [
  [
    "Attempt",
    (attempt) =>
      html`<${To} to=${{ batch: attempt.batch_id }}>${attempt.kind} ${attempt.batch_id}<//>`,
  ],
  ["Started", (attempt) => instant(attempt.opened_at)],
  ["Records", (attempt) => count(attempt.total), true],
  [
    "Acked then",
    (attempt) =>
      isDecided(attempt) ? count(attempt.total - attempt.failed_at_settlement) : "",
    true,
  ],
  [
    "Failed then",
    (attempt) => (isDecided(attempt) ? count(attempt.failed_at_settlement) : ""),
    true,
  ],
  ["Still failed today", (attempt) => count(attempt.failed), true],
  ["Batch", (attempt) => html`<${State} of=${attempt.status} />`],
];

/** What happened in each attempt, the first one first. */
export function Attempts({ family }) {
  if (family.length < 2) return null;
  return html`<${Section} title="What happened in each attempt">
    <${Rows}
      label="Attempts of these records"
      rows=${family.toSorted((attempt, other) => attempt.batch_id - other.batch_id)}
      columns=${ATTEMPTS}
    />
  <//>`;
}
