// What a view changes: whether it may, and what went wrong, said where it was tried.
import { useRef, useState } from "preact/hooks";
import { ApiError } from "./api.ts";
import { useStore } from "./store.ts";
import { said } from "./views.ts";

/** Whether the token may change things. */
export const useMayWrite = (): boolean =>
  useStore((state) => state.caller?.scopes.some((each) => each === "write" || each === "admin") ?? false);

export interface Action {
  /** Does it, unless it is being done; whether that went well. */
  run: (work: () => Promise<unknown>) => Promise<boolean>;
  error: string;
  isBusy: boolean;
  clear: () => void;
}

/** Something that a button does. `onConflict`: somebody else was first. */
export function useAction(onConflict?: () => void): Action {
  const [error, setError] = useState("");
  const [isBusy, setBusy] = useState(false);
  const running = useRef(false);
  const run = async (work: () => Promise<unknown>): Promise<boolean> => {
    if (running.current) return false;
    running.current = true;
    setBusy(true);
    try {
      await work();
      setError("");
      return true;
    } catch (failure) {
      if (failure instanceof ApiError && failure.code === "conflict") onConflict?.();
      setError(said(failure));
      return false;
    } finally {
      running.current = false;
      setBusy(false);
    }
  };
  return { run, error, isBusy, clear: () => setError("") };
}
