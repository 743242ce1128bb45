// Asking: the ledger's own data, and Airflow's API in the name of the user who is signed in.

import htm from "./vendor/htm.js";

const { createContext, useCallback, useContext, useEffect, useState } = globalThis.React;

export const html = htm.bind(globalThis.React.createElement);

// This file is <Airflow>/ledger/static/<version>/api.js, wherever Airflow is mounted.
const LEDGER = new URL("../../api/", import.meta.url);
const AIRFLOW = new URL("../../../api/v2/", import.meta.url);

/** Ask; the answer's JSON. Throws an Error whose message says what went wrong. */
async function ask(url, options = {}) {
  let answer;
  try {
    answer = await fetch(url, { credentials: "same-origin", ...options });
  } catch (cause) {
    throw new Error("Airflow did not answer. Check that it runs, then try again.", { cause });
  }
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(reason(answer.status, body.detail));
  return body;
}

function reason(status, detail) {
  if (status === 401) return "You are not signed in to Airflow any more. Sign in again.";
  if (status === 403) return "You have no permission for this in Airflow.";
  const text = typeof detail === "string" ? detail : JSON.stringify(detail ?? "");
  return text === '""' ? `Airflow answered with status ${status}.` : text;
}

/** The address of the ledger's data; parameters that are null or empty are left out. */
function address(path, params) {
  const url = new URL(path, LEDGER);
  for (const [name, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

/** The connection of the ledger whose page this is; null: the first that the pages show. */
export const Connection = createContext(null);

/** A function that makes the address of a page in this page's ledger from its parameters. */
export function useSearch() {
  const conn_id = useContext(Connection);
  return (to) => `?${new URLSearchParams(conn_id === null ? to : { ...to, conn_id })}`;
}

export const ledger = (path, params = {}) => ask(address(path, params));

/** Airflow's API, in the name of the user: `airflow("GET", ["dags", dagId])`. */
export const airflow = (method, parts, body) =>
  ask(new URL(parts.map(encodeURIComponent).join("/"), AIRFLOW), {
    method,
    headers: { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });

/** The ledger's data as state: `{ data, error, reload }`; asked again when a parameter changes.
 *  What comes too late, after the parameters have changed, is dropped. */
export function useLedger(path, params = {}) {
  const [answer, setAnswer] = useState({});
  const [times, setTimes] = useState(0);
  const asked = String(address(path, { conn_id: useContext(Connection), ...params }));
  useEffect(() => {
    let current = true;
    ask(asked).then(
      (data) => current && setAnswer({ asked, data }),
      (error) => current && setAnswer({ asked, error }),
    );
    return () => {
      current = false;
    };
  }, [asked, times]);
  const reload = useCallback(() => setTimes((number) => number + 1), []);
  return answer.asked === asked ? { ...answer, reload } : { reload };
}
