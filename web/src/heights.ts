// Heights of a long list's items, most of them estimated: where each begins, and which is where, in
// logarithmic time (a Fenwick tree).
export class Heights {
  private tree: Float64Array;
  private known: Float64Array;
  count = 0;
  readonly estimate: number;

  constructor(estimate: number) {
    this.estimate = estimate;
    this.tree = new Float64Array(1025);
    this.known = new Float64Array(1025).fill(-1);
  }

  /** There are so many items now. */
  grow(count: number): void {
    if (count >= this.tree.length) {
      const size = 2 ** Math.ceil(Math.log2(count + 2));
      const known = new Float64Array(size + 1).fill(-1);
      known.set(this.known);
      this.known = known;
      this.tree = new Float64Array(size + 1);
      for (let at = 1; at <= size; at++) {
        const height = known[at - 1]!;
        this.tree[at]! += height < 0 ? 0 : height - this.estimate;
        const parent = at + (at & -at);
        if (parent <= size) this.tree[parent]! += this.tree[at]!;
      }
    }
    this.count = count;
  }

  /** What differs from the estimate is what the tree holds, so new items cost nothing. */
  set(at: number, height: number): boolean {
    const before = this.of(at);
    if (Math.abs(before - height) < 0.5) return false;
    this.known[at] = height;
    for (let node = at + 1; node < this.tree.length; node += node & -node) this.tree[node]! += height - before;
    return true;
  }

  of(at: number): number {
    const known = this.known[at] ?? -1;
    return known < 0 ? this.estimate : known;
  }

  /** Where item `at` begins. */
  top(at: number): number {
    let sum = at * this.estimate;
    for (let node = at; node > 0; node -= node & -node) sum += this.tree[node]!;
    return sum;
  }

  get total(): number {
    return this.top(this.count);
  }

  /** The item at this place. */
  at(place: number): number {
    let low = 0;
    let high = Math.max(this.count - 1, 0);
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.top(middle) <= place) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}
