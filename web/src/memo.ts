// A component that is rendered again only if what it is given differs: `preact/compat` has one, and
// much else.
import { Component, h, type ComponentChildren, type FunctionComponent } from "preact";

export function memo<P extends object>(render: (props: P) => ComponentChildren): FunctionComponent<P> {
  class Kept extends Component<P> {
    override shouldComponentUpdate(next: P): boolean {
      const now = this.props as Record<string, unknown>;
      const then = next as Record<string, unknown>;
      const names = new Set([...Object.keys(now), ...Object.keys(then)]);
      return [...names].some((name) => !Object.is(now[name], then[name]));
    }
    override render() {
      return h(render as FunctionComponent<P>, this.props as never);
    }
  }
  return Kept as unknown as FunctionComponent<P>;
}
