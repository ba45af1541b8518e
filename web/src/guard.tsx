// What cannot be shown says so, and takes nothing else with it.
import type { ComponentChildren } from "preact";
import { useErrorBoundary } from "preact/hooks";
import * as texts from "./texts.ts";

export function Guard({ children }: { children: ComponentChildren }) {
  const [error] = useErrorBoundary() as [Error | undefined, () => void];
  if (!error) return <>{children}</>;
  return (
    <p class="error" role="alert">
      {texts.notShown} {error.message}
    </p>
  );
}
