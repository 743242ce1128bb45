// The page of a record: what it holds, its rows step by step, its attempts.

import { Replay } from "./actions.js";
import { html, useLedger } from "./api.js";
import {
  Breadcrumbs,
  count,
  instant,
  interval,
  Loaded,
  Raw,
  Rows,
  Section,
  State,
  Title,
  To,
} from "./parts.js";

const { useState } = globalThis.React;
const { Alert, Badge, Box, Button, HStack, Text } = globalThis.ChakraUI;

const FATES = {
  "passed on": "gray",
  acked: "green",
  dropped: "gray",
  failed: "red",
  lost: "red",
  "not committed": "orange",
  untracked: "gray",
  unreadable: "orange",
};

/** A row, and what came of it. */
function Branch({ of }) {
  return html`<${Box} as="li" my=${2}>
    <${HStack} wrap="wrap">
      <${Text} fontWeight="600">${of.step}<//>
      <${Badge} colorPalette=${FATES[of.fate] ?? "gray"}>${of.fate}<//>
      ${of.reason && html`<${Text} overflowWrap="anywhere">${of.reason}<//>`}
      ${of.repeated && html`<${Text} color="fg.muted">the same row as above<//>`}
    <//>
    ${of.content && html`<${Raw} maxH="8em" mt=${1}>${of.content}<//>`}
    ${of.branches.length > 0 &&
    html`<${Box} as="ul" listStyleType="none" ps=${5} borderStartWidth="2px" ms=${1}>
      ${of.branches.map((branch, place) => html`<${Branch} key=${place} of=${branch} />`)}
    <//>`}
  <//>`;
}

function Tree({ number, attempts }) {
  const [attempt, setAttempt] = useState(null);
  const answer = useLedger("tree", { number, attempt });
  return html`<${Section}
    title="Step by step"
    note="The rows that came of it, read from the files of the batch."
  >
    ${attempts.length > 1 &&
    html`<${HStack} mb=${2} role="group" aria-label="Attempt">
      ${attempts.map(
        ({ attempt: which }) =>
          html`<${Button}
            key=${which}
            size="xs"
            variant=${which === (attempt ?? answer.data?.attempt) ? "solid" : "outline"}
            aria-pressed=${which === (attempt ?? answer.data?.attempt)}
            onClick=${() => setAttempt(which)}
          >
            Attempt ${which}
          <//>`,
      )}
    <//>`}
    <${Loaded} answer=${answer}>
      ${({ tree }) =>
        html`<${Box} as="ul" listStyleType="none"><${Branch} of=${tree} /><//>`}
    <//>
  <//>`;
}

const ATTEMPTS = [
  ["Attempt", (attempt) => attempt.attempt],
  [
    "Batch",
    (attempt) => html`<${To} to=${{ batch: attempt.batch_id }}>${attempt.batch_id}<//>`,
  ],
  ["Outcome", (attempt) => html`<${State} of=${attempt.outcome} />`],
  ["Step", (attempt) => attempt.step ?? ""],
  [
    "Reason",
    (attempt) => html`<${Box} overflowWrap="anywhere">${attempt.reason ?? ""}<//>`,
  ],
  ["Decided", (attempt) => instant(attempt.decided_at)],
];

function Where({ found }) {
  if (!found.source_file) return null;
  const row = found.source_row === null ? "" : `, record ${count(found.source_row)} of the file`;
  return html`<${Text} overflowWrap="anywhere">From ${found.source_file}${row}<//>`;
}

function Found({ found, reload }) {
  const { verdict, missing } = found;
  const replayable = ["failed", "quarantined"].includes(verdict);
  return html`<${Box}>
    <${Breadcrumbs}
      above=${[
        [found.pipeline, { pipeline: found.pipeline }],
        [`Batch ${found.batch_id}`, { batch: found.batch_id }],
      ]}
      here=${`Record ${found.record}`}
    />
    <${Title}>Record ${found.record} of ${found.pipeline}<//>
    <${HStack} mt=${1} wrap="wrap">
      <${State} of=${verdict} />
      <${Text}>source ${found.source}<//>
      ${found.interval_start && html`<${Text}>${interval(found)}<//>`}
      <${To} to=${{ batch: found.batch_id }}>batch ${found.batch_id}<//>
    <//>
    ${missing &&
    html`<${Alert.Root} status=${replayable ? "warning" : "info"} my=${3}>
      <${Alert.Indicator} />
      <${Alert.Content}>
        <${Alert.Title}>${found.last_seen ? `Last seen at ${found.last_seen}` : "Not decided yet"}<//>
        <${Alert.Description} overflowWrap="anywhere">${missing}<//>
      <//>
    <//>`}
    ${replayable &&
    found.may.includes("replay") &&
    html`<${Replay}
      asked=${{
        batch: found.batch_id,
        record: found.record,
        quarantined: (verdict === "quarantined" && !found.accepted_by) || null,
        accepted: found.accepted_by ? true : null,
      }}
      label=${verdict === "quarantined" ? "Retry" : "Replay this record"}
      reload=${reload}
    />`}
    <${Section} title="Content">
      <${Where} found=${found} />
      ${found.content === null
        ? html`<${Text} color="fg.muted">
            ${found.missing
              ? "Its content is not kept yet: ackledger explain copies it where the storage can be read."
              : "The ledger keeps the content of failed records alone."}
          <//>`
        : html`<${Raw}>${found.content}<//>`}
    <//>
    <${Tree} number=${found.root} attempts=${found.attempts} />
    <${Section} title="Attempts">
      <${Rows}
        label="Attempts"
        rows=${found.attempts}
        columns=${ATTEMPTS}
        empty="It never failed."
      />
      ${found.decisions.map(
        (decision, place) =>
          html`<${Text} key=${place} mt=${2}>
            ${decision.by_hand ? "Quarantined" : "Accepted"} by ${decision.accepted_by},
            ${" "}${instant(decision.accepted_at)}: ${decision.reason}
          <//>`,
      )}
    <//>
    <${Section} title="What to do">
      <${Raw}>${found.next.join("\n")}<//>
    <//>
  <//>`;
}

export function RecordPage({ number }) {
  const answer = useLedger("record", { number });
  return html`<${Loaded} answer=${answer} page=${`Record ${number}`}>
    ${(found) => html`<${Found} key=${number} found=${found} reload=${answer.reload} />`}
  <//>`;
}
