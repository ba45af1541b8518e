// Builds the page: node build.mjs FOLDER. Views are found by their files: see src/views.ts.
// The licences of the packages inside stand in a file beside it, under git; --licenses writes it anew.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { mkdir, readFile, readdir, rename, rm, writeFile } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipAsync } from "@gfx/zopfli";
import { minify } from "terser";

const MOST_KB = 60;
const root = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2];
if (!out) throw new Error("usage: node build.mjs FOLDER [--licenses]");
const LICENSES = join(dirname(resolve(out)), "page_licenses.txt");

/** `virtual:views` exports what every file of src/views does, in the order of their names. */
const views = {
  name: "views",
  setup(plugin) {
    plugin.onResolve({ filter: /^virtual:views$/ }, () => ({ path: "views", namespace: "views" }));
    plugin.onLoad({ filter: /.*/, namespace: "views" }, async () => {
      const files = (await readdir(join(root, "src/views"))).filter((name) => name.endsWith(".tsx"));
      const lines = files.sort().map((name, at) => `import v${at} from "./views/${name}";`);
      const names = files.map((_, at) => `v${at}`).join(", ");
      return { contents: `${lines.join("\n")}\nexport default [${names}];`, resolveDir: join(root, "src") };
    });
  },
};

const options = {
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "none",
  write: false,
  metafile: true,
  // Elements as calls of `h`: 0.6 KB less than what tsconfig.json says, which is for the type checker.
  tsconfigRaw: {},
  jsx: "transform",
  jsxFactory: "h",
  jsxFragment: "Fragment",
  plugins: [views],
  absWorkingDir: root,
};
const page = await build({ ...options, entryPoints: ["src/main.tsx"], inject: ["src/elements.ts"], outdir: "page" });
const worker = await build({ ...options, entryPoints: ["src/worker.ts"], outdir: "page" });
const icon = await readFile(join(root, "src/icon.svg"));
await checkLicenses([page, worker]);

/** What is inside the page is shipped with its licence: the file tells of all of it, and of nothing else. */
async function checkLicenses(built) {
  const inputs = built.flatMap(({ metafile }) => Object.keys(metafile.inputs));
  const names = new Set(inputs.map((path) => /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path)?.[1]).filter(Boolean));
  const texts = [];
  for (const name of [...names].sort()) {
    const folder = join(root, "node_modules", name);
    const { license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    const file = (await readdir(folder)).find((each) => /^(licen[cs]e|copying)/i.test(each));
    if (!file) throw new Error(`${name} brings no text of its licence (${license}).`);
    texts.push(`${name} (${license})\n\n${(await readFile(join(folder, file), "utf8")).trim()}\n`);
  }
  const text = `The page of Perdure's server has these packages inside.\n\n${texts.join(`\n${"-".repeat(78)}\n\n`)}`;
  if (process.argv.includes("--licenses")) await writeFile(LICENSES, text);
  else if ((await readFile(LICENSES, "utf8").catch(() => "")) !== text)
    throw new Error(`${LICENSES} does not tell the licences of what is inside the page: build it with --licenses.`);
}

/** A script as small as it gets: esbuild leaves a twentieth more. */
async function small(contents) {
  const { code } = await minify(Buffer.from(contents).toString(), { module: true, ecma: 2020, compress: { passes: 3 } });
  return Buffer.from(code);
}

const hashed = (name, ending, bytes) =>
  `${name}-${createHash("sha256").update(bytes).digest("hex").slice(0, 12)}${ending}`;
const files = new Map();
const named = {};
for (const { path, contents: built } of page.outputFiles) {
  const ending = path.endsWith(".css") ? ".css" : ".js";
  const contents = ending === ".js" ? await small(built) : built;
  named[ending] = hashed("page", ending, contents);
  files.set(named[ending], contents);
}
named.icon = hashed("icon", ".svg", icon);
files.set(named.icon, icon);
files.set("worker.js", await small(worker.outputFiles[0].contents));
files.set(
  "index.html",
  Buffer.from(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Perdure</title>
<link rel="icon" href="/page/${named.icon}" type="image/svg+xml">
<link rel="stylesheet" href="/page/${named[".css"]}">
<script type="module" src="/page/${named[".js"]}"></script>
</head>
<body><div id="page"></div><noscript>This page needs JavaScript.</noscript></body>
</html>
`),
);

// The index last: it is what the server looks at, and names the others.
const beside = `${out}.new`;
await rm(beside, { recursive: true, force: true });
await mkdir(beside, { recursive: true });
// Packed as small as gzip allows, since the server sends the same bytes to everybody.
let weight = 0;
for (const [name, contents] of files) {
  const packed = await gzipAsync(contents, { numiterations: 15 });
  weight += packed.length / 1024;
  await writeFile(join(beside, name), contents);
  await writeFile(join(beside, `${name}.gz`), packed);
}
await rm(out, { recursive: true, force: true });
await rename(beside, out);

console.log(`The page weighs ${weight.toFixed(1)} KB, packed.`);
if (weight > MOST_KB) throw new Error(`The page weighs more than ${MOST_KB} KB.`);
