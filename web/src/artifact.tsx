// What a message only points to: fetched when somebody wants it, with the token in a header.
import { useEffect, useState } from "preact/hooks";
import type { ArtifactPointer, Media } from "./api_types.ts";
import { bytes } from "./format.ts";
import { languageOf } from "./highlight.ts";
import { Code } from "./markdown_view.tsx";
import { sync } from "./sync.ts";
import * as texts from "./texts.ts";
import { said } from "./views.ts";

/** Pictures that are shown without being asked for. */
const MOST_IMAGE = 5 << 20;
/** Formats that hold nothing but a picture. */
const PICTURE = /^image\/(png|jpeg|gif|webp|avif)$/;

const fetchArtifact = (artifact: string): Promise<Blob> =>
  sync.api.get("GET /api/v1/artifacts/{artifact}", { path: { artifact } });

export function Artifact({ pointer }: { pointer: ArtifactPointer }) {
  const [text, setText] = useState<string | null>(null);
  const [error, setError] = useState("");
  const fetchRest = () => {
    setError("");
    fetchArtifact(pointer.artifact)
      .then((blob) => blob.text())
      .then(setText, (failure: unknown) => setError(said(failure)));
  };
  const language = languageOf(pointer.filename ?? "");
  return (
    <div class="artifact">
      <p class="about">
        {texts.turns.artifact} {pointer.filename && <code>{pointer.filename}</code>} {bytes(pointer.size)}
        {text === null && (
          <button class="quiet" onClick={fetchRest}>
            {texts.turns.fetch}
          </button>
        )}
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
  const show = () => {
    const content = media.data ? Promise.resolve(fromBase64(media.data)) : media.artifact ? fetchArtifact(media.artifact) : null;
    content?.then(
      (blob) => setAddress(URL.createObjectURL(new Blob([blob], { type }))),
      (failure: unknown) => setError(said(failure)),
    );
  };
  useEffect(() => {
    if (isPicture && size <= MOST_IMAGE) show();
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
      {isPicture && size > MOST_IMAGE && (
        <button class="quiet" onClick={show}>
          {texts.turns.showImage}
        </button>
      )}
      {address && !isPicture && (
        <a href={address} download={media.filename || "file"}>
          {texts.turns.fetch}
        </a>
      )}
      {error && <span class="error">{error}</span>}
    </p>
  );
}

function fromBase64(data: string): Blob {
  return new Blob([Uint8Array.from(atob(data), (char) => char.charCodeAt(0))]);
}
