import { allKeys, keyLabel } from "./keys.ts";
import { Layer } from "./layer.tsx";
import * as texts from "./texts.ts";

export function KeysLayer() {
  return (
    <Layer title={texts.keysTitle}>
      <dl class="keys">
        {allKeys().map(({ key, says }) => (
          <div key={key}>
            <dt>
              <kbd>{keyLabel(key)}</kbd>
            </dt>
            <dd>{says}</dd>
          </div>
        ))}
      </dl>
    </Layer>
  );
}
