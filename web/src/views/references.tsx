// Reference layers: knowledge that is loaded when it is relevant. Those that were added here can be
// changed and removed; those of files are changed in their files.
import { useEffect, useRef, useState } from "preact/hooks";
import { useMayWrite } from "../acting.ts";
import type { LayerInfo, Layer as LayerText } from "../api_types.ts";
import { Fold } from "../fold.tsx";
import { exactly, whole } from "../format.ts";
import { Markdown } from "../markdown_view.tsx";
import { Weight } from "../memory_parts.tsx";
import { Confirm, Entry, Facts, Failure, Form, Panes } from "../panes.tsx";
import { type Place, placeHash } from "../router.ts";
import { sync } from "../sync.ts";
import { references as words } from "../texts.ts";
import { type PageView, useQuery } from "../views.ts";

const link = (name = ""): string => placeHash({ scope: "bank", view: "references", rest: name ? [name] : [] });
/** No layer is called so: their names have no `+`. */
const NEW = "+";

function References({ place }: { place: Place }) {
  const chosen = place.rest[0] ?? "";
  const mayWrite = useMayWrite();
  const { data, error, refresh } = useQuery("references", (api) => api.get("GET /api/v1/references", {}));
  const check = useQuery("references check", (api) => api.get("GET /api/v1/checks/references", {}));
  const [sought, setSought] = useState("");
  const fits = (each: LayerInfo) =>
    `${each.name} ${each.title} ${each.tags.join(" ")} ${each.triggers.join(" ")}`.toLowerCase().includes(sought.toLowerCase());
  const found = (data ?? []).filter(fits);
  const onChange = () => {
    refresh();
    check.refresh();
  };
  return (
    <>
      <div class="bar">
        <input
          type="search"
          aria-label={words.words}
          placeholder={words.words}
          value={sought}
          onInput={(event) => setSought(event.currentTarget.value)}
        />
        {mayWrite && (
          <a class="ref" href={link(NEW)}>
            {words.add}
          </a>
        )}
        <span class="count" role="status">
          {data && words.count(found.length)}
        </span>
        <Failure text={error} />
      </div>
      <Panes
        back={link()}
        list={
          <>
            {data?.length === 0 && <p class="nothing">{words.none}</p>}
            <ul class="entries">
              {found.map((each) => (
                <li key={each.name}>
                  <Entry href={link(each.name)} isChosen={each.name === chosen} what={each.title || each.name} at={each.updated} tags={each.tags}>
                    <Weight of={each.weight} />
                    <span class="ref">{each.name}</span>
                    <span>{words.tokens(whole(each.tokens))}</span>
                    <span>{each.file === null ? words.added : words.ofFile}</span>
                  </Entry>
                </li>
              ))}
            </ul>
            {check.data && check.data.problems.length > 0 && (
              <div class="entries">
                <Fold label={words.problems(check.data.problems.length)}>
                  {() => (
                    <ul>
                      {check.data?.problems.map((each, at) => (
                        <li key={at} class={each.warning ? "about" : "error"}>
                          <span class="ref">{each.where}</span> {each.what}
                        </li>
                      ))}
                    </ul>
                  )}
                </Fold>
              </div>
            )}
          </>
        }
      >
        {chosen === NEW ? (
          <LayerForm
            name=""
            text=""
            onCancel={() => {
              location.hash = link();
            }}
            onSave={async (text, name, replace) => {
              const called = nameIn(text) || name;
              if (!replace && data?.some((each) => each.name === called)) throw new Error(words.isThere(called));
              const made = await sync.api.call("POST /api/v1/references", { body: { text, name, replace } });
              onChange();
              location.hash = link(made.name);
            }}
          />
        ) : chosen ? (
          <Layer key={chosen} name={chosen} info={data?.find((each) => each.name === chosen)} onChange={onChange} />
        ) : null}
      </Panes>
    </>
  );
}

function Layer({ name, info, onChange }: { name: string; info: LayerInfo | undefined; onChange: () => void }) {
  const mayWrite = useMayWrite();
  const [isEditing, setEditing] = useState(false);
  const path = { layer: name };
  const { data, error, refresh } = useQuery(`reference ${name}`, (api) => api.get("GET /api/v1/references/{layer}", { path }));
  if (!data) return <p class={error ? "error" : "nothing"}>{error}</p>;
  return (
    <article class="whole" aria-label={name}>
      <p class="about">
        <span class="ref">{name}</span>
        <span>{words.tokens(whole(info?.tokens ?? data.tokens ?? 0))}</span>
        {info && <Weight of={info.weight} />}
      </p>
      <h2>{data.title || name}</h2>
      <Failure text={error} />
      {mayWrite && info?.file === null && !isEditing && (
        <div class="acts">
          <button onClick={() => setEditing(true)}>{words.edit}</button>
          <Confirm
            label={words.remove}
            sure={words.removeSure}
            now={words.removeNow}
            work={async () => {
              await sync.api.call("DELETE /api/v1/references/{layer}", { path });
              onChange();
              location.hash = link();
            }}
          />
        </div>
      )}
      <Facts
        of={[
          [words.file, info?.file],
          [words.triggers, (info?.triggers ?? data.triggers ?? []).join(", ")],
          [words.tags, (info?.tags ?? data.tags ?? []).join(", ")],
          [words.changed, exactly(info?.updated)],
        ]}
      />
      {isEditing ? (
        <LayerForm
          name={name}
          text={markdownOf(data)}
          onCancel={() => setEditing(false)}
          onSave={async (text) => {
            await sync.api.call("PUT /api/v1/references/{layer}", { path, body: { text } });
            refresh();
            onChange();
            setEditing(false);
          }}
        />
      ) : (
        <div class="layer-text">
          <Markdown text={data.text} />
        </div>
      )}
    </article>
  );
}

/** The name that the front matter gives. */
const nameIn = (text: string): string => /^---\s*\n(?:(?!---)[^\n]*\n)*?name:[ "']*([\w.-]+)/.exec(text)?.[1] ?? "";

/** A layer as it was added: its front matter, and its text. */
function markdownOf({ title = "", tags = [], weight, triggers = [], text }: LayerText): string {
  const listed = (of: string[]) => `[${of.map((each) => JSON.stringify(each)).join(", ")}]`;
  const lines = [
    title && `title: ${JSON.stringify(title)}`,
    tags.length > 0 && `tags: ${listed(tags)}`,
    weight !== undefined && `weight: ${weight}`,
    triggers.length > 0 && `triggers: ${listed(triggers)}`,
  ];
  return ["---", ...lines.filter(Boolean), "---", text].join("\n");
}

function LayerForm(props: {
  name: string;
  text: string;
  onSave: (text: string, name: string, replace: boolean) => Promise<void>;
  onCancel: () => void;
}) {
  const isNew = !props.name;
  const [name, setName] = useState(props.name);
  const [text, setText] = useState(props.text);
  const [replace, setReplace] = useState(false);
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    field.current?.setSelectionRange(0, 0);
    field.current?.focus();
  }, []);
  return (
    <Form
      label={isNew ? words.add : words.edit}
      save={words.save}
      onSave={() => props.onSave(text, name.trim(), replace)}
      onCancel={props.onCancel}
    >
      {isNew && (
        <label>
          {words.name}
          <input value={name} placeholder={words.nameHint} onInput={(event) => setName(event.currentTarget.value)} />
        </label>
      )}
      <label>
        {words.text}
        <textarea ref={field} class="long" rows={16} required value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      {isNew && (
        <label class="choice">
          <input type="checkbox" checked={replace} onChange={(event) => setReplace(event.currentTarget.checked)} />
          {words.replace}
        </label>
      )}
    </Form>
  );
}

export default {
  name: "references",
  title: words.view,
  scope: "bank",
  order: 42,
  View: References,
} satisfies PageView;
