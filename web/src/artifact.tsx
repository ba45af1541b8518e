// What a message only points to: fetched when somebody wants it, with the token in a header.
import { useEffect, useState } from "preact/hooks";
import type { ArtifactPointer, Media } from "./api_types.ts";
import { download } from "./download.ts";
import { bytes } from "./format.ts";
import { languageOf } from "./highlight.ts";
import { Code } from "./markdown_view.tsx";
import { sync } from "./sync.ts";
import * as texts from "./texts.ts";
import { said } from "./views.ts";

/** Pictures that are shown without being asked for. */
const MOST_IMAGE = 5 << 20;
/** Text that is shown; more would keep the browser busy for seconds, and is saved as a file. */
const MOST_TEXT = 2 << 20;
/** Formats that hold nothing but a picture. */
const PICTURE = /^image\/(png|jpeg|gif|webp|avif)$/;

const fetchArtifact = (artifact: string): Promise<Blob> =>
  sync.api.get("GET /api/v1/artifacts/{artifact}", { path: { artifact } });

export function Artifact({ pointer }: { pointer: ArtifactPointer }) {
  const [text, setText] = useState<string | null>(null);
  const [error, setError] = useState("");
  const fetchIt = async (use: (blob: Blob) => unknown) => {
    setError("");
    try {
      await use(await fetchArtifact(pointer.artifact));
    } catch (failure) {
      setError(said(failure));
    }
  };
  const language = languageOf(pointer.filename ?? "");
  return (
    <div class="artifact">
      <p class="about">
        {texts.turns.artifact} {pointer.filename && <code>{pointer.filename}</code>} {bytes(pointer.size)}
        {text === null && pointer.size <= MOST_TEXT && (
          <button class="quiet" onClick={() => void fetchIt(async (blob) => setText(await blob.text()))}>
            {texts.turns.fetch}
          </button>
        )}
        <button class="quiet" onClick={() => void fetchIt((blob) => download(blob, pointer.filename || texts.turns.file))}>
          {texts.turns.save}
        </button>
        {error && <span class="error">{error}</span>}
      </p>
      {(text ?? pointer.head) && <Code text={text ?? `${pointer.head}\n…`} language={language} numbered={text !== null} />}
    </div>
  );
}

export function MediaPart({ media }: { media: Media }) {
  const [address, setAddress] = useState("");
  const [error, setError] = useState("");
  const type = media.media_type ?? "";
  const isPicture = PICTURE.test(type);
  const size = media.size || Math.floor(((media.data?.length ?? 0) * 3) / 4);
  const isHere = Boolean(media.data || media.artifact);
  const fetchIt = async (use: (blob: Blob) => void) => {
    setError("");
    try {
      use(new Blob([media.data ? fromBase64(media.data) : await fetchArtifact(media.artifact!)], { type }));
    } catch (failure) {
      setError(said(failure));
    }
  };
  const show = () => void fetchIt((blob) => setAddress(URL.createObjectURL(blob)));
  useEffect(() => {
    if (isPicture && isHere && size <= MOST_IMAGE) show();
  }, []);
  useEffect(() => () => URL.revokeObjectURL(address), [address]);
  const name = media.filename || type || texts.turns.file;
  if (address && isPicture) return <img class="picture" src={address} alt={name} />;
  return (
    <p class="about">
      {isPicture ? texts.turns.image : texts.turns.file} <code>{name}</code> {size > 0 && bytes(size)}
      {media.url && /^https?:/i.test(media.url) && (
        <a href={media.url} rel="noopener noreferrer" target="_blank">
          {media.url}
        </a>
      )}
      {isPicture && isHere && size > MOST_IMAGE && (
        <button class="quiet" onClick={show}>
          {texts.turns.showImage}
        </button>
      )}
      {!isPicture && isHere && (
        <button class="quiet" onClick={() => void fetchIt((blob) => download(blob, name))}>
          {texts.turns.save}
        </button>
      )}
      {error && <span class="error">{error}</span>}
    </p>
  );
}

const fromBase64 = (data: string): Uint8Array<ArrayBuffer> => Uint8Array.from(atob(data), (char) => char.charCodeAt(0));
