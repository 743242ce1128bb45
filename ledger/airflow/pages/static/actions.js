// Actions: runs of Airflow, in the name of whoever is signed in.

import { airflow, html, ledger } from "./api.js";
import { count, Loaded, Problem, Raw, runPath, State } from "./parts.js";

const { useEffect, useState } = globalThis.React;
const { Link: RouterLink } = globalThis.ReactRouterDOM;
const { Alert, Box, Button, CloseButton, Dialog, Field, HStack, Input, Link, Portal, Text } =
  globalThis.ChakraUI;

const LOOK_AGAIN = 2000; // milliseconds
const records = (number) => `${count(number)} record${number === 1 ? "" : "s"}`;

/** Start a run by hand; its id. */
async function start(dagId, conf, note) {
  const body = { logical_date: null, conf, note };
  return (await airflow("POST", ["dags", dagId, "dagRuns"], body)).dag_run_id;
}

/** What becomes of a run that was started here. */
function Started({ dagId, runId, ended }) {
  const [state, setState] = useState("queued");
  const [error, setError] = useState(null);
  useEffect(() => {
    let timer = null;
    const look = async () => {
      try {
        const run = await airflow("GET", ["dags", dagId, "dagRuns", runId]);
        setState(run.state);
        setError(null);
        if (run.state === "success" || run.state === "failed") return ended();
      } catch (problem) {
        setError(problem);
      }
      timer = setTimeout(look, LOOK_AGAIN);
      return null;
    };
    look();
    return () => clearTimeout(timer);
  }, [dagId, runId]);
  return html`<${Box} role="status" aria-live="polite" my=${2}>
    <${HStack}>
      <${Link} asChild=${true} colorPalette="blue">
        <${RouterLink} to=${runPath(dagId, runId)}>Run ${runId} of ${dagId}<//>
      <//>
      <${State} of=${state} />
    <//>
    ${error && html`<${Problem} error=${error} />`}
  <//>`;
}

/** A dialog with a button that starts a run. */
function Ask({ title, label, confirm, disabled, run, reload, children }) {
  const [isOpen, setOpen] = useState(false);
  const [started, setStarted] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const go = async () => {
    setBusy(true);
    setError(null);
    try {
      setStarted(await run());
      setOpen(false);
    } catch (problem) {
      setError(problem);
    } finally {
      setBusy(false);
    }
  };
  return html`
    <${Dialog.Root} open=${isOpen} onOpenChange=${(event) => setOpen(event.open)} size="lg">
      <${Dialog.Trigger} asChild=${true}>
        <${Button} size="sm" colorPalette="blue">${label}<//>
      <//>
      <${Portal}>
        <${Dialog.Backdrop} />
        <${Dialog.Positioner}>
          <${Dialog.Content}>
            <${Dialog.Header}><${Dialog.Title}>${title}<//><//>
            <${Dialog.Body}>
              ${isOpen && children} ${error && html`<${Problem} error=${error} />`}
            <//>
            <${Dialog.Footer}>
              <${Dialog.ActionTrigger} asChild=${true}>
                <${Button} variant="outline">Cancel<//>
              <//>
              <${Button} colorPalette="blue" loading=${busy} disabled=${disabled} onClick=${go}>
                ${confirm}
              <//>
            <//>
            <${Dialog.CloseTrigger} asChild=${true}><${CloseButton} size="sm" /><//>
          <//>
        <//>
      <//>
    <//>
    ${started &&
    html`<${Started} dagId=${started.dagId} runId=${started.runId} ended=${reload} />`}
  `;
}

/** Whether a DAG is there and takes runs; says so if not. */
function Paused({ dagId }) {
  const [dag, setDag] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    airflow("GET", ["dags", dagId]).then(setDag, setError);
  }, [dagId]);
  if (error) return html`<${Problem} title=${`DAG ${dagId}`} error=${error} />`;
  if (!dag?.is_paused) return null;
  return html`<${Alert.Root} status="warning" my=${2}>
    <${Alert.Indicator} />
    <${Alert.Content}>DAG ${dagId} is paused: the run waits until it is unpaused.<//>
  <//>`;
}

function Preview({ found }) {
  return html`<${Box}>
    <${Text}>
      ${records(found.records)} of batch ${found.batch_id} will run again through
      ${" "}${found.steps.join(", ")}. Records that are acked stay as they are.
    <//>
    <${Box} as="ul" ps=${5} my=${2} listStyleType="disc">
      ${found.groups
        .slice(0, 10)
        .map(
          (group, place) =>
            html`<li key=${place}>
              ${records(group.records)} at ${group.step}: ${group.reason}
            </li>`,
        )}
      ${found.groups.length > 10 && html`<li>${found.groups.length - 10} more reasons</li>`}
    <//>
    <${Text} fontSize="sm" color="fg.muted">It starts a run of DAG ${found.dag_id} with:<//>
    <${Raw}>${JSON.stringify(found.conf, null, 2)}<//>
    <${Paused} dagId=${found.dag_id} />
  <//>`;
}

/** Replay what is chosen of a batch: a preview first. `chosen`: step, reason, root. */
export function Replay({ batch, chosen, label, quarantined = false, reload }) {
  const [answer, setAnswer] = useState({});
  const asked = JSON.stringify({ batch, ...chosen, ...(quarantined ? { quarantined } : {}) });
  useEffect(() => {
    setAnswer({});
    ledger("replay", JSON.parse(asked)).then(
      (data) => setAnswer({ data }),
      (error) => setAnswer({ error }),
    );
  }, [asked]);
  const found = answer.data;
  const run = async () => {
    const note = `replays ${records(found.records)} of batch ${found.batch_id}`;
    return { dagId: found.dag_id, runId: await start(found.dag_id, found.conf, note) };
  };
  return html`<${Ask}
    title=${label}
    label=${label}
    confirm=${found ? `Replay ${records(found.records)}` : "Replay"}
    disabled=${!found?.records}
    run=${run}
    reload=${reload}
  >
    <${Loaded} answer=${answer}>${(data) => html`<${Preview} found=${data} />`}<//>
  <//>`;
}

function Accept({ batch, reload }) {
  const [reason, setReason] = useState("");
  const dagId = "ledger_accept";
  const conf = { batch: batch.batch_id, reason };
  const run = async () => ({ dagId, runId: await start(dagId, conf, null) });
  return html`<${Ask}
    title="Accept quarantined records"
    label="Accept"
    confirm=${`Accept ${records(batch.quarantined - batch.accepted)}`}
    disabled=${!reason.trim()}
    run=${run}
    reload=${reload}
  >
    <${Text} mb=${2}>They stay out of the sinks. Your name and the reason are kept.<//>
    <${Field.Root} required=${true}>
      <${Field.Label}>Why may they stay out?<//>
      <${Input} value=${reason} onChange=${(event) => setReason(event.target.value)} />
    <//>
    <${Paused} dagId=${dagId} />
  <//>`;
}

function Release({ batch, reload }) {
  const dagId = "ledger_replay";
  const conf = { batch: batch.batch_id, release: true };
  const run = async () => ({ dagId, runId: await start(dagId, conf, null) });
  return html`<${Ask}
    title=${`Release batch ${batch.batch_id}`}
    label="Release"
    confirm="Release"
    run=${run}
    reload=${reload}
  >
    <${Text} mb=${2}>It is held: ${batch.held_reason}<//>
    <${Text}>
      Released, it settles all the same: what is acked is published, and what failed is replayed.
    <//>
    <${Paused} dagId=${dagId} />
  <//>`;
}

/** What can be done about a batch. `chosen`: the failures that are listed. */
export function Actions({ found, chosen, reload }) {
  const { batch, can } = found;
  if (!can.length) return null;
  if (!found.may_run) {
    return html`<${Text} color="fg.muted">
      To replay, accept or release it you need permission to run DAG ${batch.pipeline}.
    <//>`;
  }
  const original = found.family.find((one) => one.kind === "original") ?? batch;
  const those = chosen.step ? " these" : "";
  return html`<${HStack} wrap="wrap" align="start">
    ${can.includes("replay") &&
    html`<${Replay}
      batch=${batch.batch_id}
      chosen=${chosen}
      label=${`Replay${those}`}
      reload=${reload}
    />`}
    ${can.includes("take up") &&
    html`<${Replay}
      batch=${batch.batch_id}
      chosen=${chosen}
      quarantined=${true}
      label=${`Take up${those} from quarantine`}
      reload=${reload}
    />`}
    ${can.includes("accept") && html`<${Accept} batch=${original} reload=${reload} />`}
    ${can.includes("release") && html`<${Release} batch=${batch} reload=${reload} />`}
  <//>`;
}
