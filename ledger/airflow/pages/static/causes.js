// Of the causes of failed records, those whose records a replay is to take.

import { html } from "./api.js";
import { count, records } from "./parts.js";

const { Box, Checkbox, Text } = globalThis.ChakraUI;

const repeats = (cause) => cause.repeated === cause.records;

/** Which causes are chosen at first, by their places: those that a replay may put right. What was
 *  asked for by record, by reason or by state is chosen already. */
export function preselected(found, asked) {
  const explicit = asked.record || asked.reason || asked.quarantined || asked.accepted;
  const places = found.groups.map((_, place) => place);
  if (explicit) return places;
  return places.filter((place) => found.groups[place].cause !== "unparsed" && !repeats(found.groups[place]));
}

/** What a replay of the causes at these places takes: how many records, by which conf. */
export function chosenOf(found, places) {
  if (places.length === found.groups.length) {
    return { places, records: found.records, conf: found.conf };
  }
  const causes = found.groups.filter((_, place) => places.includes(place));
  const match = causes.reduce((sum, cause) => sum + cause.records, 0);
  return {
    places,
    records: Math.min(match, found.limit ?? match),
    conf: { ...found.conf, causes: causes.map(({ step, cause, words }) => ({ step, cause, words })) },
  };
}

/** What speaks against a replay of a cause's records. */
function warnings(cause) {
  const those = cause.records === 1 ? "It" : "They";
  const last = cause.last === 1 ? "1 of these is" : `${count(cause.last)} of these are`;
  return [
    cause.cause === "unparsed" &&
      `${those} did not parse, and a replay parses the same text: correct the source and replay with from_source, or correct the schema first.`,
    cause.repeated > 0 &&
      `${records(cause.repeated)} failed in the same way in the last replay.`,
    cause.last > 0 && `${last} quarantined after one more failure (max_replays=${cause.max_replays}).`,
  ].filter(Boolean);
}

/** The causes to choose from, what speaks against each, and what a replay costs. */
export function Causes({ found, choice, choose }) {
  const { places } = choice;
  const toggle = (place) =>
    choose(places.includes(place) ? places.filter((other) => other !== place) : [...places, place]);
  return html`
    <${Box} as="ul" listStyleType="none" my=${2}>
      ${found.groups.map(
        (cause, place) =>
          html`<${Box} as="li" key=${place} my=${2}>
            <${Checkbox.Root}
              size="sm"
              checked=${places.includes(place)}
              onCheckedChange=${() => toggle(place)}
            >
              <${Checkbox.HiddenInput} />
              <${Checkbox.Control} />
              <${Checkbox.Label} overflowWrap="anywhere">
                ${records(cause.records)} at ${cause.step}: ${cause.reason}
              <//>
            <//>
            ${warnings(cause).map(
              (line) =>
                html`<${Text} key=${line} fontSize="sm" ps=${6} color="orange.fg">${line}<//>`,
            )}
          <//>`,
      )}
      ${found.more > 0 &&
      html`<li>${count(found.more)} more causes, replayed only if all above are chosen</li>`}
    <//>
    ${found.groups.length > 0 &&
    html`<${Text} fontSize="sm">
      Each failure through a record's own fault uses up one replay of it
      (max_replays=${found.groups[0].max_replays}).
    <//>`}
  `;
}
