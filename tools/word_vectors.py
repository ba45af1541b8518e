"""Write `src/perdure/gateway/wordllama`: the vocabulary and the vectors of wordllama.

    pip install wordllama && python tools/word_vectors.py

The vectors are kept as signed bytes, each row with a scale: what is found with them is the same,
in half the bytes (docs/why.md). `tests/gateway/wordllama.json` holds tokens and vectors that the
packages made, to compare with.
"""

from __future__ import annotations

import json
import shutil
from importlib import metadata
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent.parent
FOLDER = HERE / "src" / "perdure" / "gateway" / "wordllama"


def main() -> None:
    package = metadata.distribution("wordllama")
    source = Path(str(package.locate_file("wordllama")))
    (settings,) = source.glob("tokenizers/l2_supercat*.json")
    (weights,) = source.glob("weights/l2_supercat_256.safetensors")

    vocabulary = json.loads(settings.read_text())["model"]["vocab"]
    FOLDER.mkdir(exist_ok=True)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    (FOLDER / "vocabulary.json").write_text(json.dumps(tokens, ensure_ascii=False, indent=0))

    vectors = _tensor(weights).astype(np.float32)
    scales = np.abs(vectors).max(axis=1, keepdims=True) / 127
    np.save(FOLDER / "vectors.npy", np.rint(vectors / scales).astype(np.int8))
    np.save(FOLDER / "scales.npy", scales[:, 0].astype(np.float32))

    (notice,) = (file for file in package.files or () if file.name == "LICENSE")
    shutil.copyfile(str(package.locate_file(notice)), FOLDER / "LICENSE")


def _tensor(file: Path) -> np.ndarray:
    """The one tensor of a safetensors file: its header's length, its header, its bytes."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    (name,) = (key for key in header if key != "__metadata__")
    start, end = header[name]["data_offsets"]
    assert header[name]["dtype"] == "F16"
    body = data[8 + length + start : 8 + length + end]
    return np.frombuffer(body, dtype=np.float16).reshape(header[name]["shape"])


if __name__ == "__main__":
    main()
