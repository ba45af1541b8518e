// What the page keeps in the browser (IndexedDB), so that it is there at once after a reload, and
// while the server is away. One database for each bank and each agent that the token is for. A
// browser that refuses one (private windows) works without.
import type { Turn } from "./api_types.ts";

export interface KeptHistory {
  name: string;
  newest: number;
  through: number;
  undone: [number, number][];
  forgets: number;
  opened: number;
}

const VERSION = 1;
const PREFIX = "perdure-";
/** Sessions that are kept, those that were opened last. */
const MOST_SESSIONS = 200;

export class Database {
  private readonly db: IDBDatabase | null;
  private constructor(db: IDBDatabase | null) {
    this.db = db;
  }

  static async open(name: string): Promise<Database> {
    const request = indexedDB.open(PREFIX + name, VERSION);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("values");
      request.result.createObjectStore("histories", { keyPath: "name" });
      request.result.createObjectStore("turns", { keyPath: ["session", "number"] });
    };
    const db = await done(request).catch(() => null);
    const database = new Database(db);
    void database.trim();
    return database;
  }

  /** Everything that any bank left in this browser. */
  static async clear(): Promise<void> {
    for (const { name } of await indexedDB.databases()) {
      if (name?.startsWith(PREFIX)) indexedDB.deleteDatabase(name);
    }
  }

  async value<T>(key: string): Promise<T | undefined> {
    return this.read("values", (store) => store.get(key) as IDBRequest<T | undefined>);
  }

  /** Those whose keys begin so. */
  async values<T>(prefix: string): Promise<T[]> {
    const range = IDBKeyRange.bound(prefix, `${prefix}\uffff`);
    return (await this.read("values", (store) => store.getAll(range) as IDBRequest<T[]>)) ?? [];
  }

  /** `undefined` deletes it. */
  async setValue(key: string, value: unknown): Promise<void> {
    await this.write(["values"], (store) => (value === undefined ? store("values").delete(key) : store("values").put(value, key)));
  }

  async history(name: string): Promise<KeptHistory | undefined> {
    return this.read("histories", (store) => store.get(name) as IDBRequest<KeptHistory | undefined>);
  }

  /** The last turns up to `newest`, oldest first. */
  async turns(name: string, newest: number, most: number): Promise<Turn[]> {
    const range = IDBKeyRange.bound([name, Math.max(newest - most + 1, 0)], [name, newest]);
    return (await this.read("turns", (store) => store.getAll(range) as IDBRequest<Turn[]>)) ?? [];
  }

  async save(history: KeptHistory, turns: Turn[]): Promise<void> {
    await this.write(["histories", "turns"], (store) => {
      store("histories").put(history);
      for (const turn of turns) store("turns").put(turn);
    });
  }

  /** A session is gone, or turns of it were forgotten. */
  async drop(name: string): Promise<void> {
    await this.write(["histories", "turns"], (store) => {
      store("histories").delete(name);
      store("turns").delete(IDBKeyRange.bound([name, 0], [name, Infinity]));
    });
  }

  /** Drop what is kept of sessions that are not there any more. */
  async keepOnly(isThere: (name: string) => boolean): Promise<void> {
    const kept = (await this.read("histories", (store) => store.getAllKeys())) as string[] | undefined;
    for (const name of kept ?? []) if (!isThere(name)) await this.drop(name);
  }

  private async trim(): Promise<void> {
    const all = await this.read("histories", (store) => store.getAll() as IDBRequest<KeptHistory[]>);
    const old = (all ?? []).sort((one, other) => other.opened - one.opened).slice(MOST_SESSIONS);
    for (const each of old) await this.drop(each.name);
  }

  private async read<T>(store: string, ask: (store: IDBObjectStore) => IDBRequest<T>): Promise<T | undefined> {
    if (!this.db) return undefined;
    return done(ask(this.db.transaction(store).objectStore(store))).catch(() => undefined);
  }

  private async write(names: string[], change: (store: (name: string) => IDBObjectStore) => void): Promise<void> {
    if (!this.db) return;
    try {
      const transaction = this.db.transaction(names, "readwrite");
      change((name) => transaction.objectStore(name));
      await new Promise<void>((resolve) => {
        transaction.oncomplete = () => resolve();
        transaction.onabort = () => resolve(); // the disk is full: it is a cache
      });
    } catch {
      // closed, or cleared by another page: a cache, too
    }
  }
}

function done<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
