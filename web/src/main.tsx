import "./style.css";
import { render } from "preact";
import { handleKey } from "./keys.ts";
import { parsePlace } from "./router.ts";
import { Shell } from "./shell.tsx";
import { store } from "./store.ts";
import { sync } from "./sync.ts";
import { setTheme } from "./theme.ts";

function follow(): void {
  const place = parsePlace(location.hash);
  const before = store.getState().place;
  store.setState({ place, lastSession: place.session || store.getState().lastSession });
  if (place.agent && place.agent !== before.agent) void sync.refreshSessions(place.agent);
  if (place.session && place.session !== before.session) void sync.refresh(place.session);
}

setTheme((localStorage.getItem("perdure-theme") ?? "") as "" | "light" | "dark");
addEventListener("keydown", handleKey);
addEventListener("hashchange", follow);
if ("serviceWorker" in navigator) void navigator.serviceWorker.register("/worker.js").catch(() => {});

async function start(): Promise<void> {
  await sync.start().catch((error: Error) => {
    store.setState({ connection: "out", loginError: error.message });
  });
  follow();
  const root = document.getElementById("page")!;
  render(<Shell />, root);
}

void start();
