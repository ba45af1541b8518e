// A memory's name and weight, as several views show them.
import { placeHash } from "./router.ts";
import * as texts from "./texts.ts";

/** The two parts of `planner/M-7`. */
export function memoryPath(name: string): { agent: string; key: string } {
  const slash = name.lastIndexOf("/");
  return { agent: name.slice(0, slash), key: name.slice(slash + 1) };
}

/** Where a memory is shown, by such a name. */
export function memoryHash(name: string): string {
  const { agent, key } = memoryPath(name);
  return placeHash({ scope: "agent", agent, view: "memories", rest: [key] });
}

const WIDTH = 40;

export function Weight({ of }: { of: number }) {
  return (
    <span class="weight" title={texts.memories.weight}>
      <svg width={WIDTH} height="5" aria-hidden="true">
        <rect class="ground" width={WIDTH} height="5" rx="2" />
        <rect class="fill" width={Math.max(1, of * WIDTH)} height="5" rx="2" />
      </svg>{" "}
      {of.toFixed(2)}
    </span>
  );
}
