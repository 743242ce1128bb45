// Actions: runs of Airflow, in the name of the user who is signed in.

import { airflow, html, useLedger } from "./api.js";
import { Causes, chosenOf, preselected } from "./causes.js";
import { Consequences } from "./hold.js";
import { instant, Loaded, Problem, Raw, records, runPath, State } from "./parts.js";

const { useEffect, useState } = globalThis.React;
const { Link: RouterLink } = globalThis.ReactRouterDOM;
const { Alert, Box, Button, CloseButton, Dialog, Field, HStack, Input, Link, Portal, Text } =
  globalThis.ChakraUI;

const LOOK_AGAIN = 2000; // milliseconds
const ENDED = ["success", "failed"];

/** Start a run by hand; its id. */
async function start(dagId, conf, note) {
  const body = { logical_date: null, conf, note };
  return (await airflow("POST", ["dags", dagId, "dagRuns"], body)).dag_run_id;
}

/** What becomes of a run that was started here; `ended` is called at its end. */
function Started({ dagId, runId, ended }) {
  const [state, setState] = useState("queued");
  const [error, setError] = useState(null);
  useEffect(() => {
    let current = true;
    let timer = null;
    const look = async () => {
      try {
        const run = await airflow("GET", ["dags", dagId, "dagRuns", runId]);
        if (!current) return;
        setState(run.state);
        if (ENDED.includes(run.state)) ended();
        else timer = setTimeout(look, LOOK_AGAIN);
      } catch (problem) {
        if (current) setError(problem);
      }
    };
    look();
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [dagId, runId]);
  return html`<${Box} role="status" aria-live="polite" my=${2}>
    <${HStack}>
      <${Link} asChild=${true} color="fg.info">
        <${RouterLink} to=${runPath(dagId, runId)}>Run ${runId} of ${dagId}<//>
      <//>
      <${State} of=${state} />
    <//>
    ${error && html`<${Problem} error=${error} />`}
  <//>`;
}

/** A button, and the dialog that it opens. `children`: asked for once it is open; called with what
 *  makes a button of the dialog that starts a run. */
function Ask({ title, label, reload, children }) {
  const [isOpen, setOpen] = useState(false);
  const [started, setStarted] = useState(null);
  const done = (run) => {
    setStarted(run);
    setOpen(false);
  };
  return html`
    <${Dialog.Root} open=${isOpen} onOpenChange=${(event) => setOpen(event.open)} size="lg">
      <${Dialog.Trigger} asChild=${true}>
        <${Button} size="sm">${label}<//>
      <//>
      <${Portal}>
        <${Dialog.Backdrop} />
        <${Dialog.Positioner}>
          <${Dialog.Content}>
            <${Dialog.Header}><${Dialog.Title}>${title ?? label}<//><//>
            ${isOpen && children(done)}
            <${Dialog.CloseTrigger} asChild=${true}><${CloseButton} size="sm" /><//>
          <//>
        <//>
      <//>
    <//>
    ${started &&
    html`<${Started}
      key=${started.runId}
      dagId=${started.dagId}
      runId=${started.runId}
      ended=${reload}
    />`}
  `;
}

/** The DAG that will run: `undefined` until that is known, `null` if there is none. */
function useDag(dagId) {
  const [answer, setAnswer] = useState({});
  useEffect(() => {
    airflow("GET", ["dags", dagId]).then(
      (dag) => setAnswer({ dag }),
      (error) => setAnswer({ error }),
    );
  }, [dagId]);
  return answer;
}

/** The body and the buttons of a dialog: its text, and the run that it starts. */
function Confirm({ dagId, conf, note = null, confirm, disabled, done, children }) {
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const { dag, error: missing } = useDag(dagId);
  const go = async () => {
    setBusy(true);
    setError(null);
    try {
      done({ dagId, runId: await start(dagId, conf, note) });
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  return html`
    <${Dialog.Body}>
      ${children}
      ${missing &&
      html`<${Problem} title=${`Airflow cannot run DAG ${dagId}`} error=${missing} />`}
      ${dag?.is_paused &&
      html`<${Alert.Root} status="warning" my=${2}>
        <${Alert.Indicator} />
        <${Alert.Content}>DAG ${dagId} is paused: the run waits until it is unpaused.<//>
      <//>`}
      ${error && html`<${Problem} error=${error} />`}
    <//>
    <${Dialog.Footer}>
      <${Dialog.ActionTrigger} asChild=${true}>
        <${Button} variant="outline">Cancel<//>
      <//>
      <${Button}
        loading=${busy}
        disabled=${disabled || !dag}
        onClick=${go}
      >
        ${confirm}
      <//>
    <//>
  `;
}

/** Why failed records of the batch are not among those that would be replayed. */
function NotDue({ found }) {
  const { replaying, later, not_before: first } = found.waiting;
  const counted = (number, singular, plural) =>
    `${records(number)} ${number === 1 ? singular : plural}`;
  const lines = [
    found.match > found.records &&
      `${counted(found.match, "matches", "match")}; one replay takes ${records(found.records)} (replay_limit).`,
    replaying > 0 && `${counted(replaying, "is", "are")} being replayed already.`,
    later > 0 && `${counted(later, "waits", "wait")} after the last replay, the first until ${instant(first)}.`,
  ].filter(Boolean);
  return lines.map((line) => html`<${Text} key=${line} fontSize="sm">${line}<//>`);
}

/** Of the quarantined records those that a person gave up, which no replay takes unasked. */
const LeftOut = ({ found }) =>
  found.left_out.map(
    (acceptance, number) => html`<${Text} key=${number} fontSize="sm" overflowWrap="anywhere">
      ${records(acceptance.records)} left out, accepted by ${acceptance.accepted_by} on
      ${" "}${instant(acceptance.accepted_at)}: ${acceptance.reason}. Retry
      ${" "}${acceptance.records === 1 ? "it" : "one"} on its own page.
    <//>`,
  );

const ACKED = "Acked records are not re-run.";
const WHOLE =
  "All other records of the batch run again with them, without the quarantined ones, and the sinks replace its rows.";

function Preview({ found, choice, choose }) {
  return html`
    <${Text}>
      ${records(choice.records)} of batch ${found.batch_id} will run again through
      ${" "}${found.steps.join(", ")}. ${found.whole ? WHOLE : ACKED}
    <//>
    <${Causes} found=${found} choice=${choice} choose=${choose} />
    <${NotDue} found=${found} />
    <${LeftOut} found=${found} />
    <${Text} fontSize="sm" color="fg.muted" mt=${2}>
      It starts a run of DAG ${found.dag_id} with:
    <//>
    <${Raw}>${JSON.stringify(choice.conf, (_, value) => value ?? undefined, 2)}<//>
  `;
}

function Chosen({ found, asked, done }) {
  const [places, choose] = useState(() => preselected(found, asked));
  const choice = chosenOf(found, places);
  return html`<${Confirm}
    dagId=${found.dag_id}
    conf=${choice.conf}
    note=${`replays ${records(choice.records)} of batch ${found.batch_id}`}
    confirm=${`Replay ${records(choice.records)}`}
    disabled=${!choice.records}
    done=${done}
  >
    <${Preview} found=${found} choice=${choice} choose=${choose} />
  <//>`;
}

function ReplayDialog({ asked, done }) {
  const answer = useLedger("replay", asked);
  return html`<${Loaded} answer=${answer}>
    ${(found) => html`<${Chosen} found=${found} asked=${asked} done=${done} />`}
  <//>`;
}

/** Replay what is chosen of a batch: a preview first. `asked`: batch, step, reason, record,
 *  quarantined. */
export const Replay = ({ asked, label, reload }) =>
  html`<${Ask} label=${label} reload=${reload}>
    ${(done) => html`<${ReplayDialog} asked=${asked} done=${done} />`}
  <//>`;

function AcceptDialog({ found, done }) {
  const { batch } = found;
  const [reason, setReason] = useState("");
  return html`<${Confirm}
    dagId=${found.forms.accept}
    conf=${{ batch: batch.batch_id, reason }}
    confirm=${`Accept ${records(batch.quarantined - batch.accepted)}`}
    disabled=${!reason.trim()}
    done=${done}
  >
    <${Text} mb=${2}>They stay out of the sinks. Your name and the reason are kept.<//>
    <${Field.Root} required=${true}>
      <${Field.Label}>Why may they stay out?<//>
      <${Input} value=${reason} onChange=${(event) => setReason(event.target.value)} />
    <//>
  <//>`;
}

const Release = ({ found, done }) =>
  html`<${Confirm}
    dagId=${found.forms.release}
    conf=${{ batch: found.batch.batch_id, release: true }}
    confirm="Release"
    done=${done}
  >
    <${Consequences} found=${found} />
  <//>`;

/** What can be done about a batch. `chosen`: the failures that are listed. */
export function Actions({ found, chosen, reload }) {
  const { batch, can, may } = found;
  const asked = { batch: batch.batch_id, ...chosen };
  const those = chosen.step ? " these" : "";
  const offered = {
    replay: ["replay", { label: `Replay${those}`, asked }],
    "retry": [
      "replay",
      { label: `Retry${those} quarantined`, asked: { ...asked, quarantined: true } },
    ],
  };
  const denied = new Set(
    can.map((action) => offered[action]?.[0] ?? action).filter((action) => !may.includes(action)),
  );
  return html`
    <${HStack} wrap="wrap" align="start">
      ${can
        .filter((action) => offered[action] && may.includes("replay"))
        .map(
          (action) =>
            html`<${Replay} key=${action} ...${offered[action][1]} reload=${reload} />`,
        )}
      ${can.includes("accept") &&
      may.includes("accept") &&
      html`<${Ask} title="Accept quarantined records" label="Accept" reload=${reload}>
        ${(done) => html`<${AcceptDialog} found=${found} done=${done} />`}
      <//>`}
      ${can.includes("release") &&
      may.includes("release") &&
      html`<${Ask} title=${`Release batch ${batch.batch_id}`} label="Release" reload=${reload}>
        ${(done) => html`<${Release} found=${found} done=${done} />`}
      <//>`}
    <//>
    ${denied.size > 0 &&
    html`<${Text} color="fg.muted">
      You may not ${[...denied].join(" or ")} in Airflow: that needs permission to create runs of
      the DAG.
    <//>`}
  `;
}
