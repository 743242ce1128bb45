// The ledger's pages in Airflow. Airflow imports this file, and renders what it leaves in
// globalThis under the name of the plugin's pages: once in the navigation, and on the pages of a
// DAG and of a run, whose ids it passes on. Which page it is stands in the address:
// ?record=17, ?batch=3, ?pipeline=orders; of which ledger, if there are several: &conn_id=sales.

import { Connection, html } from "./api.js";
import { BatchPage } from "./batch.js";
import { OverviewPage, PipelinePage, RunPage } from "./overview.js";
import { NoPage } from "./parts.js";
import { RecordPage } from "./record.js";
import { useZone } from "./times.js";

const { useSearchParams } = globalThis.ReactRouterDOM;
const { Box } = globalThis.ChakraUI;

const NUMBERED = { record: RecordPage, batch: BatchPage };

/** The page of a record or a batch, by its number. */
function numbered(kind, text) {
  const name = `${kind[0].toUpperCase()}${kind.slice(1)} ${text}`;
  if (/^[1-9][0-9]{0,17}$/.test(text)) {
    return html`<${NUMBERED[kind]} key=${name} number=${text} />`;
  }
  const expected = `Expected the number of a ${kind}, as in ?${kind}=17; found ${text}.`;
  return html`<${NoPage} key=${name} name=${name} error=${new Error(expected)} />`;
}

function page({ dagId, runId }, given) {
  const kind = Object.keys(NUMBERED).find((name) => given.get(name));
  if (kind) return numbered(kind, given.get(kind));
  const pipeline = given.get("pipeline");
  if (pipeline) return html`<${PipelinePage} key=${pipeline} name=${pipeline} />`;
  if (runId) return html`<${RunPage} dagId=${dagId} runId=${runId} />`;
  if (dagId) return html`<${PipelinePage} name=${dagId} />`;
  return html`<${OverviewPage} />`;
}

// Airflow shows the icon as a picture, whose color does not follow that of the active tile of its
// navigation; on a tab, which has the same mark, the picture has a style of its own. Plot writes
// its legends smaller than the rest.
const STYLES = `
[aria-current="page"] img[src*="ledger/static/"]:not([style]) { filter: brightness(0) invert(1); }
[data-ledger] figure [class*="-swatches"] { font-size: 12px; }
`;

globalThis.Ledger = function Ledger(props) {
  const [given] = useSearchParams();
  return html`<${Box} key=${useZone()} data-ledger="" p=${4} overflowY="auto" height="100%">
    <style>${STYLES}</style>
    <${Connection.Provider} value=${given.get("conn_id")}>${page(props, given)}<//>
  <//>`;
};
