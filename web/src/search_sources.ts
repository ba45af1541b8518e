// Where the search box looks, beside what the views find: the place itself, the names of agents and
// sessions, and turns of all sessions by recall.
import { sessionPath } from "./api.ts";
import { type Place, placeHash, turnHash, turnNumber } from "./router.ts";
import { store } from "./store.ts";
import { sync } from "./sync.ts";
import * as texts from "./texts.ts";
import { type Hit, views } from "./views.ts";

export type Source = (query: string, place: Place, signal: AbortSignal) => Hit[] | Promise<Hit[]>;

/** Agents that are asked for turns, and turns of each. */
const MOST_AGENTS = 8;
const MOST_TURNS = 6;
const LISTED = 1_000;

const hasWords = (name: string, query: string): boolean => name.toLowerCase().includes(query.toLowerCase());

/** A turn of this session by its number, agents, and sessions that this page knows: at once. */
function known(query: string, place: Place): Hit[] {
  const { agents, sessions, histories } = store.getState();
  const number = turnNumber(query);
  const isThere = number > 0 && number <= (histories[place.session]?.newest ?? 0);
  return [
    ...(isThere ? [{ href: turnHash(place.session, number), title: texts.search.turn(number) }] : []),
    ...(agents ?? [])
      .filter(({ agent }) => hasWords(agent.name, query))
      .map(({ agent }) => ({ href: placeHash({ scope: "agent", agent: agent.name }), title: agent.name, text: texts.agents })),
    ...Object.values(sessions).flat().filter(({ name }) => hasWords(name, query)).map(sessionHit),
  ];
}

const sessionHit = ({ name }: { name: string }): Hit => ({ href: placeHash({ scope: "session", session: name }), title: name, text: texts.sessions });

async function sessionsByName(query: string, _: Place, signal: AbortSignal): Promise<Hit[]> {
  const { sessions } = await sync.api.get("GET /api/v1/sessions", { query: { limit: LISTED } }, signal);
  return sessions.filter(({ name }) => hasWords(name, query)).map(sessionHit);
}

/** Recall, from the session that each agent used last: it sees what is that agent's, however old. */
async function turnsRecalled(query: string, _: Place, signal: AbortSignal): Promise<Hit[]> {
  const { sessions } = await sync.api.get("GET /api/v1/sessions", { query: { limit: LISTED } }, signal);
  const newest = new Map<string, string>();
  for (const { agent, name } of sessions) if (!newest.has(agent)) newest.set(agent, name);
  const asked = [...newest.values()].slice(0, MOST_AGENTS).map(async (session) => {
    const body = { query, kinds: "turn", wide: true, limit: MOST_TURNS };
    const { hits = [] } = await sync.api.call("POST /api/v1/sessions/{agent}/{name}/recall", { path: sessionPath(session), body }, signal);
    return hits.map(({ key, text }) => {
      // The session that was asked does not name itself.
      const full = key.includes("#") ? key : `${session}#${key}`;
      const [name = "", turn = ""] = full.split("#");
      return { href: turnHash(name, turnNumber(turn)), title: full, text };
    });
  });
  return (await Promise.all(asked)).flat();
}

/** In the order in which their hits stand. */
export const sources: Source[] = [
  known,
  sessionsByName,
  ...views.flatMap(({ search }) => search ?? []),
  turnsRecalled,
];
