// The ledger's pages in Airflow. Airflow imports this file, and renders what it leaves in
// globalThis under the name of the plugin's pages: once in the navigation, and on the pages of a
// DAG and of a run, whose ids it passes on. Which page it is stands in the address:
// ?record=17, ?batch=3, ?pipeline=orders.

import { html } from "./api.js";
import { BatchPage } from "./batch.js";
import { OverviewPage, PipelinePage, RunPage } from "./overview.js";
import { RecordPage } from "./record.js";

const { useSearchParams } = globalThis.ReactRouterDOM;
const { Box } = globalThis.ChakraUI;

function page({ dagId, runId }, given) {
  const record = given.get("record");
  if (record) return html`<${RecordPage} key=${record} number=${record} />`;
  const batch = given.get("batch");
  if (batch) return html`<${BatchPage} key=${batch} number=${batch} />`;
  const pipeline = given.get("pipeline");
  if (pipeline) return html`<${PipelinePage} key=${pipeline} name=${pipeline} />`;
  if (runId) return html`<${RunPage} dagId=${dagId} runId=${runId} />`;
  if (dagId) return html`<${PipelinePage} name=${dagId} />`;
  return html`<${OverviewPage} />`;
}

globalThis.Ledger = function Ledger(props) {
  const [given] = useSearchParams();
  return html`<${Box} data-ledger="" p=${4} overflowY="auto" height="100%">
    ${page(props, given)}
  <//>`;
};
