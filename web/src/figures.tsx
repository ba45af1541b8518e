// What reports are made of: figures, tables whose rows have bars, a chart of days. A bar never says
// more than the number beside it, so that a table is as good as a picture.
import "./figures.css";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { Fold } from "./fold.tsx";
import * as texts from "./texts.ts";

/** The view itself: it scrolls, and keys scroll it. */
export const Report = ({ label, children }: { label: string; children: ComponentChildren }) => (
  <div class="report" role="region" aria-label={label} tabIndex={0}>
    {children}
  </div>
);

export const Part = ({ title, children }: { title: string; children: ComponentChildren }) => (
  <section aria-label={title}>
    <h2>{title}</h2>
    {children}
  </section>
);

/** Figures that stand for themselves: what, how much, and a remark. */
export const Sums = ({ of }: { of: [string, string, string?][] }) => (
  <dl class="sums">
    {of.map(([what, figure, remark]) => (
      <div key={what}>
        <dt>{what}</dt>
        <dd>{figure}</dd>
        {remark && <dd>{remark}</dd>}
      </div>
    ))}
  </dl>
);

export interface TableColumn<T> {
  title: string;
  cell: (row: T) => ComponentChildren;
  class?: string;
}

/** A table; its first column names the row. */
export function FigureTable<T>(props: { label: string; rows: T[]; columns: TableColumn<T>[]; keyOf: (row: T) => string }) {
  const [first, ...others] = props.columns;
  return (
    <div class="scrolls" role="group" aria-label={props.label} tabIndex={0}>
      <table class="figures">
        <thead>
          <tr>
            <th scope="col" class="name">
              {first!.title}
            </th>
            {others.map((each) => (
              <th key={each.title} scope="col" class={each.class}>
                {each.title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {props.rows.map((row) => (
            <tr key={props.keyOf(row)}>
              <th scope="row" class="name">
                {first!.cell(row)}
              </th>
              {others.map((each) => (
                <td key={each.title} class={each.class}>
                  {each.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export const percent = (share: number | null | undefined): string =>
  share === null || share === undefined || Number.isNaN(share) ? "–" : `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;

/** A share of a whole as a bar, its number beside it; `held` goes on top of it. */
export const Share = ({ of, held = 0 }: { of: number; held?: number }) => (
  <>
    <svg aria-hidden="true">
      <rect class="track" width="100%" height="100%" rx="2" />
      {held > 0 && <rect class="held" width={`${Math.min(of + held, 1) * 100}%`} height="100%" rx="2" />}
      <rect width={`${Math.min(of, 1) * 100}%`} height="100%" rx="2" />
    </svg>
    {percent(of + held)}
  </>
);

/** One column a day; the same as a table below it. */
export function DayChart(props: { label: string; days: [string, number][]; say: (value: number) => string; measure: string }) {
  const { days, say } = props;
  const most = Math.max(...days.map(([, value]) => value), 0);
  const wide = 100 / days.length;
  const [peak = ""] = days.find(([, value]) => value === most) ?? [];
  const told = days.filter(([, value]) => value > 0);
  return (
    <>
      <div class="chart">
        <div class="most">{most > 0 && texts.figures.most(say(most), peak)}</div>
        <svg role="img" aria-label={`${props.label}. ${most > 0 ? texts.figures.most(say(most), peak) : texts.figures.none}`}>
          {days.map(([day, value], at) => {
            const height = most > 0 ? (value / most) * 100 : 0;
            return (
              <g key={day}>
                <title>{`${day}: ${say(value)}`}</title>
                <rect class="catch" x={`${at * wide}%`} width={`${wide}%`} height="100%" />
                <rect class="column" x={`${at * wide + wide * 0.1}%`} width={`${wide * 0.8}%`} y={`${100 - height}%`} height={`${height}%`} />
              </g>
            );
          })}
        </svg>
        <div class="ends">
          <span>{days[0]?.[0]}</span>
          <span>{days.at(-1)?.[0]}</span>
        </div>
      </div>
      {told.length > 0 && (
        <Fold label={texts.figures.asTable}>
          {() => (
            <FigureTable
              label={props.label}
              rows={told.reverse()}
              keyOf={([day]) => day}
              columns={[
                { title: texts.figures.day, cell: ([day]) => day },
                { title: props.measure, cell: ([, value]) => say(value) },
                { title: texts.figures.share, class: "share", cell: ([, value]) => <Share of={value / most} /> },
              ]}
            />
          )}
        </Fold>
      )}
    </>
  );
}

const EVERY_MS = 30_000;

/** Asks again now and then while somebody looks: what changes with each call is not worth a question each. */
export function useRenewal(refresh: () => void): void {
  useEffect(() => {
    const timer = setInterval(() => document.hidden || refresh(), EVERY_MS);
    return () => clearInterval(timer);
  });
}
