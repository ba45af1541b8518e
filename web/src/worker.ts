// A service worker that shows the page when the server is away, and never otherwise: the page itself
// is always asked for first. What it shows then, the page finds in its own database.
const CACHE = "perdure-page";
/** The server tells programs something else at the same address. */
const ANY: CacheQueryOptions = { ignoreVary: true };
const worker = self as unknown as {
  addEventListener: (kind: string, listen: (event: WorkerEvent) => void) => void;
  skipWaiting: () => Promise<void>;
  clients: { claim: () => Promise<void> };
  location: Location;
};

interface WorkerEvent {
  request: Request;
  respondWith: (answer: Promise<Response>) => void;
  waitUntil: (work: Promise<unknown>) => void;
}

worker.addEventListener("install", (event) => event.waitUntil(install()));
worker.addEventListener("activate", (event) => event.waitUntil(worker.clients.claim()));

worker.addEventListener("fetch", (event) => {
  const { pathname } = new URL(event.request.url);
  const isPage = event.request.mode === "navigate" && pathname === "/";
  if (event.request.method !== "GET" || !(isPage || pathname.startsWith("/page/"))) return;
  event.respondWith(isPage ? showPage(event.request) : showFile(event.request));
});

/** The page that brought the worker was loaded without it. */
async function install(): Promise<void> {
  await showPage(new Request("/", { headers: { accept: "text/html" } }));
  await worker.skipWaiting();
}

async function showPage(request: Request): Promise<Response> {
  const cache = await caches.open(CACHE);
  try {
    const answer = await fetch(request);
    if (answer.ok) {
      await keep(cache, answer.clone());
      return answer;
    }
    return (await cache.match("/", ANY)) ?? answer;
  } catch (error) {
    const kept = await cache.match("/", ANY);
    if (kept) return kept;
    throw error;
  }
}

/** The page, and the files that it names; those of former builds go. */
async function keep(cache: Cache, page: Response): Promise<void> {
  const names = [...(await page.clone().text()).matchAll(/"(\/page\/[^"]+)"/g)].map((match) => match[1]!);
  const kept = await cache.keys();
  await cache.delete("/", ANY);
  await cache.put("/", page);
  for (const request of kept) {
    const { pathname } = new URL(request.url);
    if (pathname !== "/" && !names.includes(pathname)) await cache.delete(request, ANY);
  }
  for (const name of names) if (!(await cache.match(name, ANY))) await cache.add(name).catch(() => {});
}

async function showFile(request: Request): Promise<Response> {
  const kept = await caches.match(request, ANY);
  return kept ?? fetch(request);
}
