/** How a turn is shown, the highest fidelity first. */
export const LEVELS = ["R", "S", "C", "T"] as const;
export type Level = (typeof LEVELS)[number];
