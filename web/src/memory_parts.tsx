// A memory's name and weight, as several views show them.
import * as texts from "./texts.ts";

/** The two parts of `planner/M-7`. */
export function memoryPath(name: string): { agent: string; key: string } {
  const slash = name.lastIndexOf("/");
  return { agent: name.slice(0, slash), key: name.slice(slash + 1) };
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
