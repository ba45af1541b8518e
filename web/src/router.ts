// Places as parts of the address: #/session/planner/auth/turns/T-12, #/agent/planner/memories,
// #/bank/costs. Names are percent-encoded, since they may hold anything but slashes.

export interface Place {
  scope: "session" | "agent" | "bank";
  agent: string;
  /** `agent/name`; empty outside a session. */
  session: string;
  /** The view's name; empty: the scope's first. */
  view: string;
  /** What follows is the view's own. */
  rest: string[];
}

export const NOWHERE: Place = { scope: "bank", agent: "", session: "", view: "", rest: [] };

export function parsePlace(hash: string): Place {
  const parts = hash.replace(/^#\/?/, "").split("/").map(decode);
  const [scope, one = "", two = "", ...rest] = parts;
  if (scope === "session" && one && two) {
    return { scope, agent: one, session: `${one}/${two}`, view: rest[0] ?? "", rest: rest.slice(1) };
  }
  if (scope === "agent" && one) return { scope, agent: one, session: "", view: two, rest };
  if (scope === "bank" && one) return { ...NOWHERE, view: one, rest: [two, ...rest].filter(Boolean) };
  return NOWHERE;
}

export function placeHash(place: Partial<Place> & Pick<Place, "scope">): string {
  const { scope, agent = "", session = "", view = "", rest = [] } = place;
  const parts = scope === "session" ? session.split("/") : scope === "agent" ? [agent] : [];
  const all = [scope, ...parts, ...(view || rest.length ? [view, ...rest] : [])];
  return `#/${all.map(encodeURIComponent).join("/")}`;
}

/** The address of a turn. */
export const turnHash = (session: string, turn: number): string =>
  placeHash({ scope: "session", session, view: "turns", rest: [`T-${turn}`] });

/** `T-183`, `T-183.4` or `183`; 0 if it is none. */
export function turnNumber(text: string): number {
  const found = /^(?:T-)?(\d{1,8})(?:\.\d+)?$/i.exec(text.trim());
  return found ? Number(found[1]) : 0;
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
