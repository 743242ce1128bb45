// Times, in the zone that the user has chosen in Airflow.

const { useSyncExternalStore } = globalThis.React;

const KEY = "timezone"; // where Airflow keeps it, as JSON
const CHANGED = ["local-storage", "storage"]; // in this window, in another

const browsers = () => Intl.DateTimeFormat().resolvedOptions().timeZone;

/** The chosen zone; the browser's, if there is none, or none that the browser knows. */
function zone() {
  try {
    const chosen = JSON.parse(localStorage.getItem(KEY));
    return chosen ? Intl.DateTimeFormat("en", { timeZone: chosen }).resolvedOptions().timeZone : browsers();
  } catch {
    return browsers();
  }
}

function subscribe(changed) {
  for (const event of CHANGED) addEventListener(event, changed);
  return () => {
    for (const event of CHANGED) removeEventListener(event, changed);
  };
}

/** The zone as state: another choice renders what uses it again. */
export const useZone = () => useSyncExternalStore(subscribe, zone);

const SHOWN = {
  year: "numeric",
  month: "2-digit",
  day: "2-digit",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
  timeZoneName: "short",
};

function parts(iso, timeZone) {
  const fields = new Intl.DateTimeFormat("en-GB", { ...SHOWN, timeZone }).formatToParts(new Date(iso));
  const of = Object.fromEntries(fields.map(({ type, value }) => [type, value]));
  return {
    day: `${of.year}-${of.month}-${of.day}`,
    time: `${of.hour}:${of.minute}:${of.second}`,
    zone: of.timeZoneName,
  };
}

/** A time as Airflow has it, to the second: 2013-02-03 04:05:06 UTC. */
export function instant(iso) {
  if (!iso) return "";
  const { day, time, zone: name } = parts(iso, zone());
  return `${day} ${time} ${name}`;
}

/** Whether both ends are at midnight there. */
const ofDays = (start, end, timeZone) =>
  [start, end].every((iso) => parts(iso, timeZone).time === "00:00:00");

const DAY = 86_400_000;

/** An interval: its days, where it begins and ends at midnight, in the chosen zone or in UTC. */
export function interval({ interval_start: start, interval_end: end }) {
  const timeZone = [zone(), "UTC"].find((name) => ofDays(start, end, name));
  if (timeZone === undefined) return `${instant(start)} to ${instant(end)}`;
  const [first, last] = [start, end].map((iso) => parts(iso, timeZone).day);
  return new Date(last) - new Date(first) === DAY ? first : `${first} to ${last}`;
}
