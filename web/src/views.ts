// Views: each is a file of src/views with a default export of this form. The build finds them, so a
// new one touches nothing else; one for agents and for the bank exports two. See docs/page.md.
import type { FunctionComponent } from "preact";
import { useEffect } from "preact/hooks";
import found from "virtual:views";
import type { Api } from "./api.ts";
import { ApiError } from "./api.ts";
import { type Place, placeHash } from "./router.ts";
import { store, useStore } from "./store.ts";
import { sync } from "./sync.ts";

export interface Hit {
  /** Where it leads: a hash of `router.ts`. */
  href: string;
  title: string;
  text?: string;
}

export interface PageView {
  /** In addresses, and the name of its file. */
  name: string;
  title: string;
  /** Where it stands: beside the turns of a session, or for an agent, or for the whole bank. */
  scope: Place["scope"];
  /** Its place among those of its scope. */
  order: number;
  View: FunctionComponent<{ place: Place }>;
  /** Takes part in the search box: what fits the query, in this place. */
  search?: (query: string, place: Place, signal: AbortSignal) => Promise<Hit[]>;
}

export const views: PageView[] = (found as (PageView | PageView[])[]).flat().sort((one, other) => one.order - other.order);

export const viewsOf = (scope: Place["scope"]): PageView[] => views.filter((view) => view.scope === scope);

/** The view of a place: the one it names, or its scope's first. */
export function viewAt(place: Place): PageView | undefined {
  const own = viewsOf(place.scope);
  return place.view ? own.find((view) => view.name === place.view) : place.scope === "bank" ? undefined : own[0];
}

export function go(place: Partial<Place> & Pick<Place, "scope">): void {
  location.hash = placeHash(place);
}

export interface Query<T> {
  /** What is known: shown at once, from memory or the browser. */
  data: T | undefined;
  /** When it was asked for; 0: never. */
  at: number;
  error: string;
  refresh: () => void;
}

/**
 * Something that the API tells, by a key of its own. What is known is there at once; the server is
 * asked behind it: when the view is opened, when the connection is back, and when live events of
 * the kinds in `on` come in. There is nothing to wait for, so views need no spinner.
 */
export function useQuery<T>(
  key: string,
  ask: (api: Api) => Promise<T>,
  on: ("turn" | "session" | "job")[] = [],
): Query<T> {
  const answer = useStore((state) => state.queries[key]);
  const connection = useStore((state) => state.connection);
  const heard = useStore((state) => on.reduce((sum, kind) => sum + state.heard[kind], 0));
  const refresh = () => void sync.query(key, ask);
  useEffect(() => {
    const timer = setTimeout(refresh, answer && heard ? 500 : 0);
    return () => clearTimeout(timer);
  }, [key, connection === "live", heard]);
  return { data: answer?.data as T | undefined, at: answer?.at ?? 0, error: answer?.error ?? "", refresh };
}

/** What went wrong, in words. */
export const said = (error: unknown): string =>
  error instanceof ApiError && error.hint ? `${error.message} ${error.hint}` : String((error as Error).message ?? error);

export { store, sync, useStore };
