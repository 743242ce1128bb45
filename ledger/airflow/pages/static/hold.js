// What a batch on hold shows a person to decide by: nothing of it is decided.

import { html, useLedger } from "./api.js";
import { columnsOf, count, Loaded, Raw, records, Rows, Section } from "./parts.js";

const { useState } = globalThis.React;
const { Box, Button, HStack, Text } = globalThis.ChakraUI;

/** How many records would fail. */
export const wouldFail = (preview) => preview.reduce((sum, row) => sum + row.records, 0);

/** What to do about a batch on hold: a command, or a click in Airflow. */
export function Ways({ found }) {
  if (found.batch.status !== "held") return null;
  const ways = found.commands;
  return html`<${Box} as="dl" mb=${3}>
    ${ways.map(
      ([what, how]) =>
        html`<${Box} as="dt" key=${what} fontWeight="600">${what}<//>
          <${Box} as="dd" key=${how} mb=${2}>
            ${how.startsWith("ackledger ") ? html`<${Raw}>${how}<//>` : how}
          <//>`,
    )}
  <//>`;
}

function Reasons({ preview, chosen, choose }) {
  const isChosen = (row) => chosen.step === row.step && chosen.reason === row.reason;
  const pick = (row) => choose(isChosen(row) ? {} : { step: row.step, reason: row.reason });
  const columns = [
    ["Step", (row) => row.step],
    ["Reason", (row) => html`<${Box} overflowWrap="anywhere">${row.reason}<//>`],
    ["Source", (row) => row.source],
    ["Records", (row) => count(row.records), true],
    [
      "Sample",
      (row) =>
        html`<${Button}
          size="xs"
          variant="outline"
          aria-label=${`List records that would fail at ${row.step}: ${row.reason}`}
          aria-pressed=${isChosen(row)}
          onClick=${() => pick(row)}
        >
          List records at ${row.step}
        <//>`,
    ],
  ];
  return html`<${Rows}
    label="What would fail, by step and reason"
    rows=${preview}
    columns=${columns}
    empty="Nothing would fail."
  />`;
}

const RECORDS = [
  [
    "Content",
    (row) =>
      html`<${Box} fontFamily="mono" fontSize="xs" overflowWrap="anywhere">
        ${row.beginning ?? "not copied yet"}
      <//>`,
  ],
  ["Step", (row) => row.step],
  ["Reason", (row) => html`<${Box} overflowWrap="anywhere">${row.reason}<//>`],
];

function Sample({ number, chosen }) {
  const [after, setAfter] = useState([0]);
  const answer = useLedger("failed", { batch: number, ...chosen, after: after.at(-1) });
  return html`<${Loaded} answer=${answer}>
    ${({ records: listed, next }) => html`
      <${Rows}
        label="A sample of the records that would fail"
        rows=${listed}
        columns=${columnsOf(listed, RECORDS)}
        empty="No record is kept of these."
      />
      ${(next !== null || after.length > 1) &&
      html`<${HStack} mt=${2}>
        <${Button}
          size="sm"
          variant="outline"
          disabled=${after.length === 1}
          onClick=${() => setAfter(after.slice(0, -1))}
        >
          Previous
        <//>
        <${Button}
          size="sm"
          variant="outline"
          disabled=${next === null}
          onClick=${() => setAfter([...after, next])}
        >
          Next
        <//>
      <//>`}
    `}
  <//>`;
}

/** In the place of a decided batch's failures. `chosen`: step and reason of what is listed. */
export function OnHold({ found, chosen, choose }) {
  const { batch, preview } = found;
  if (!preview.length) return null;
  const listed = [chosen.step && `at ${chosen.step}`, chosen.reason].filter(Boolean).join(": ");
  return html`
    <${Section}
      title="On hold: not decided"
      note=${`${records(wouldFail(preview))} would fail if the batch were settled as it is.`}
    >
      <${Reasons} preview=${preview} chosen=${chosen} choose=${choose} />
    <//>
    <${Section} title="A sample of these records" note=${listed || null}>
      <${Sample} key=${JSON.stringify(chosen)} number=${batch.batch_id} chosen=${chosen} />
    <//>
  `;
}

/** The text of the dialog that asks whether to release it. */
export const Consequences = ({ found }) => html`<${Text}>
  ${count(wouldFail(found.preview))} of ${records(found.batch.total)} fail then, and are replayed;
  the others are acked. If a check fails, too, the batch stays on hold.
<//>`;
