import { store } from "./store.ts";

type Theme = "" | "light" | "dark";
const NEXT: Record<Theme, Theme> = { "": "light", light: "dark", dark: "" };

export function setTheme(theme: Theme): void {
  store.setState({ theme });
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  localStorage.setItem("perdure-theme", theme);
}

export const nextTheme = (): void => setTheme(NEXT[store.getState().theme]);
