"""Train the zstd dictionary that ships with Perdure, on text of this repository.

    python tools/train_dictionary.py

A dictionary holds fragments of what it was trained on, and this one is in every installation. So
nothing goes into it but what is published anyway: our documentation, source, tests and their
history, and the phrases in this file, which were written for it. They are put into the shapes that
banks hold: messages of coding agents with their tool calls and results, answers of the three wire
formats. The text of benchmarks is left out, so that they measure what a user would.

Values name the dictionary they were compressed with. To ship a better one, write it beside the
others under the next number (`perdure.storage.compression.NUMBER`).
Never change one that was released.
"""

# ruff: noqa: E501 (sentences are not broken)

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from perdure.core import messages as canonical
from perdure.core.messages import Message, Reasoning, Text, ToolCall, ToolResult, Usage

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "src/perdure/storage/compression-1.zdict"
NUMBER = 1
SIZE = 112 * 1024
SEED = 15
#: Text that measures us must not be in it; nor what no agent would read.
LEFT_OUT = ("benchmarks/", "requirements/", "tests/data/")
#: The longest sample: of longer values, the rest is its own dictionary.
LONGEST = 12_000

USERS = """
Can you take a look at the failing tests and fix them?
Please add a test for this, and run the whole suite before you commit.
What did we decide about the authentication flow last week?
I think the bug is in the way that the cache is invalidated. Could you check whether that's the case?
Let's go with the second option. Make sure that the existing API keeps working.
Why does this take so long? It used to be a lot faster before the last change.
Continue.
Yes, please go ahead. Don't forget to update the documentation and the changelog.
That doesn't work, I still get the same error: TypeError: 'NoneType' object is not subscriptable
No, that's not what I meant. I want the function to return an empty list if there are no results.
Read the file first, then tell me what you would change and why. Do not edit anything yet.
How do I run this locally? I have Python 3.12 and Docker, but no access to the production database.
Refactor this so that it is easier to understand, without changing its behaviour.
Hey! How are you doing today? I've been thinking about what you said about the trip last weekend.
Thanks, that's really helpful! I really appreciate it. What would you recommend for someone like me?
My name is Anna, I live in Berlin with my husband and our two kids, and I work as a software engineer.
I'm going to visit my parents in two weeks. Do you have any ideas for a present for my mother's birthday?
I've been feeling a bit stressed at work lately, and I would like to spend more time with my friends.
We went hiking in the mountains on Saturday, and the weather was great. Have you ever been there?
Could you help me to write an email to my boss about the meeting on Monday morning?
By the way, I changed the name of the branch to feature/session-refresh, and pushed it to origin.
Remember that I prefer short answers, and that I'm using TypeScript with React and Tailwind CSS.
""".strip().splitlines()

ASSISTANTS = (
    """
I'll start by looking at the structure of the project to understand how it is organised.
Let me read the relevant files first.
Now let me check how this function is used elsewhere in the code base.
The tests pass now. Let me run the linter and the type checker as well.
I found the problem: the connection is never closed when an exception is raised, so the pool runs out of connections.
Good, that works. Next, I'm going to update the tests to reflect the new behaviour.
You're right, I apologize for the confusion. Let me fix that.
There are a few ways to do this. The simplest one would be to add a parameter with a default value, so that existing callers don't have to change.
Here is a summary of what I did:\\n\\n1. **Added** a new module that handles the retries.\\n2. **Updated** the configuration so that the timeout can be set.\\n3. **Fixed** the race condition in the worker.\\n\\nAll tests pass. Would you like me to commit the changes?
I need to be careful here: the function is called from several places, and some of them rely on the old return value.
The user wants me to find out why the request fails. Let me look at the logs, and then at the code that sends it.
The error occurs because the file does not exist yet when it is opened. We should create the directory first.
That sounds wonderful! I'm so glad to hear that you had a good time with your family. How was the food?
Of course! Here are some suggestions that might be helpful for you:
I don't have access to that information, but I can help you to find it.
It looks like the issue is related to the version of the library that is installed. According to the documentation, this option was added in version 2.0.
Perfect! Now I have a good understanding of the code. Let me implement the changes step by step.
However, this would be a breaking change. If we want to keep it compatible, we could deprecate the old name instead.
Interesting. The output shows that only one of the two processes has the lock, while the other one is still waiting for it.
Let me think about this. The current implementation uses a dictionary to keep track of the sessions, but it never removes the ones that are no longer used, so it grows without bound.
""".strip()
    .replace("\\n", "\n")
    .splitlines()
)

CHAT = """
Hey! It's so good to see you. What's been going on in your life lately? Anything new?
I just got back from a weekend with my family, and we had such a great time together at the beach.
That's awesome, congratulations! I'm really proud of you. How did you feel when you heard the news?
Thank you so much for your support, it means a lot to me. I couldn't have done it without my friends.
Wow, that looks amazing! Where did you take this picture? It reminds me of the place where I grew up.
I started taking a painting class last month, and it has been a great way to relax and express myself.
Yeah, I know what you mean. It's important to take care of yourself and to do the things that you love.
What kind of music do you like? I've been listening to a lot of jazz and classical music recently.
I'm looking forward to it! Let me know if you need any help. Take care, and talk to you soon!
My daughter is starting school in September, and she's very excited about her new teacher and classmates.
We're planning to move to a bigger house next year, because we want to have more space for the children.
I've always wanted to learn how to play the guitar. Do you have any tips for someone who is just starting out?
Last night I cooked dinner for everyone: pasta with tomato sauce, a green salad, and chocolate cake for dessert.
It was really hard at first, but I kept going, and now I feel much better about it. Never give up on your dreams!
I read a great book about the history of the city. It made me think about how much the world has changed.
Sounds like a plan! I'd love to join you. What time should we meet on Friday afternoon?
Not really, I'm not sure yet. I was thinking about going there again in the summer, maybe in July or August.
I'm sorry to hear that. Losing someone you love is never easy. I'm here for you if you want to talk about it.
I work at a hospital as a nurse, so my days are quite long, but I enjoy helping people and their families.
The doctor said that I should get more sleep, eat more vegetables, and go for a walk every morning.
I've been running every day for the past few weeks, because I want to run a marathon at the end of the year.
Do you remember the name of the restaurant that we went to on my birthday two years ago? I think it was Italian.
They told me yesterday that they would make a decision before the end of the month, so we will see what happens.
There is nothing better than sitting by the fire with a good cup of tea and watching a movie with your dog.
Could you please tell me more about this? I would like to know how much it costs, and how long it takes.
First of all, you should make a list of everything that you need. Then decide what is most important to you.
I believe that every person should be able to follow their own path, no matter what other people say about it.
He was the best man at our wedding, and she has been my best friend since we were in high school together.
In general, it depends on what you want to do with it. For example, if you only need it for a few days, you could rent one instead.
It's been a while since we last talked! How are things going with your new job, and how is your sister doing?
""".strip().splitlines()

COMMANDS = """
ls -la
git status
git status --short
git diff --stat
git diff HEAD~1
git log --oneline -10
git add -A && git commit -m "Fix the race condition in the worker"
git checkout -b feature/session-refresh
git push origin main
python -m pytest tests/ -x -q 2>&1 | tail -20
python -m pytest -xvs tests/test_session.py::test_refresh
pytest -q --tb=short 2>&1 | head -50
npm install
npm run build 2>&1 | tail -30
npm test -- --watch=false
npx tsc --noEmit
cargo test --quiet
cargo build --release 2>&1 | tail -5
go test ./...
make check
ruff check . && ruff format --check .
mypy src/
rg -n "def connect" src/ | head -20
grep -rn "TODO" --include="*.py" . | wc -l
find . -name "*.py" -not -path "*/node_modules/*" -not -path "*/.venv/*" | head -50
sed -n '1,200p' src/app.py
cat package.json
cat pyproject.toml
wc -l src/*.py
docker compose up -d && docker ps
curl -s http://localhost:8080/api/health | jq .
pip install -r requirements.txt
python3 -c "import json, sys; print(json.load(sys.stdin))"
mkdir -p build && cd build && cmake .. && make -j4
""".strip().splitlines()

OUTPUTS = """
On branch main
Your branch is up to date with 'origin/main'.

Changes not staged for commit:
  (use "git add <file>..." to update what will be committed)
  (use "git restore <file>..." to discard changes in working directory)
	modified:   src/app/session.py

Untracked files:
  (use "git add <file>..." to include in what will be committed)
	tests/test_session.py

no changes added to commit (use "git add" and/or "git commit -a")
---
total 64
drwxr-xr-x  12 user user  4096 Jan 12 10:24 .
drwxr-xr-x   5 user user  4096 Jan 10 09:01 ..
drwxr-xr-x   8 user user  4096 Jan 12 10:24 .git
-rw-r--r--   1 user user   512 Jan 10 09:01 .gitignore
-rw-r--r--   1 user user  1071 Jan 10 09:01 LICENSE
-rw-r--r--   1 user user  2048 Jan 11 17:40 README.md
-rw-r--r--   1 user user  1337 Jan 11 17:40 package.json
-rw-r--r--   1 user user  2210 Jan 12 10:24 pyproject.toml
drwxr-xr-x   4 user user  4096 Jan 12 10:24 src
drwxr-xr-x   3 user user  4096 Jan 12 10:24 tests
---
============================= test session starts ==============================
platform linux -- Python 3.11.9, pytest-8.3.4, pluggy-1.5.0
rootdir: /home/user/project
configfile: pyproject.toml
plugins: asyncio-0.24.0, cov-6.0.0
collected 42 items

tests/test_session.py ..........F.....                                   [ 38%]
tests/test_store.py ..........................                           [100%]

=================================== FAILURES ===================================
_______________________________ test_refresh ___________________________________

    def test_refresh() -> None:
        session = Session("a")
>       assert session.refresh() == "b"
E       AssertionError: assert 'a' == 'b'
E
E         - b
E         + a

tests/test_session.py:12: AssertionError
=========================== short test summary info ============================
FAILED tests/test_session.py::test_refresh - AssertionError: assert 'a' == 'b'
========================= 1 failed, 41 passed in 1.23s =========================
---
Traceback (most recent call last):
  File "/home/user/project/src/app/main.py", line 42, in <module>
    main()
  File "/home/user/project/src/app/main.py", line 31, in main
    result = asyncio.run(run(arguments))
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/usr/lib/python3.11/asyncio/runners.py", line 190, in run
    return runner.run(main)
           ^^^^^^^^^^^^^^^^
KeyError: 'session'
---
ModuleNotFoundError: No module named 'requests'
---
FileNotFoundError: [Errno 2] No such file or directory: '/home/user/project/config.json'
---
npm warn deprecated inflight@1.0.6: This module is not supported, and leaks memory.

added 312 packages, and audited 313 packages in 8s

48 packages are looking for funding
  run `npm fund` for details

found 0 vulnerabilities
---
src/components/App.tsx(12,5): error TS2322: Type 'string' is not assignable to type 'number'.
src/components/App.tsx(31,18): error TS2339: Property 'items' does not exist on type 'Props'.
---
   Compiling app v0.1.0 (/home/user/project)
    Finished `dev` profile [unoptimized + debuginfo] target(s) in 2.31s
     Running unittests src/lib.rs (target/debug/deps/app-0123456789abcdef)

running 12 tests
test tests::it_works ... ok

test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
---
{"status": "ok", "version": "1.2.3", "uptime": 12345, "data": [{"id": 1, "name": "first", "created_at": "2025-01-12T10:24:31.123Z"}]}
---
Collecting requests
  Downloading requests-2.32.3-py3-none-any.whl (64 kB)
Installing collected packages: urllib3, idna, charset-normalizer, certifi, requests
Successfully installed certifi-2024.12.14 charset-normalizer-3.4.1 idna-3.10 requests-2.32.3 urllib3-2.3.0
---
bash: line 1: rg: command not found
---
error: failed to push some refs to 'origin'
hint: Updates were rejected because the remote contains work that you do not have locally.
---
The file /home/user/project/src/app/session.py has been updated. Here's the result of running `cat -n` on a snippet of the edited file:
---
File created successfully at: /home/user/project/tests/test_session.py
---
Command timed out after 2m 0.0s
---
Exit code 1
---
No files found
---
Found 12 files
---
(no output)
---
Success. Updated the following files:
M src/app/session.py
A tests/test_session.py
""".strip().split("\n---\n")

#: In other languages than ours.
CODE = """
import React, { useState, useEffect } from 'react';

interface Props {
  title: string;
  items: Item[];
  onSelect?: (item: Item) => void;
}

export const List: React.FC<Props> = ({ title, items, onSelect }) => {
  const [selected, setSelected] = useState<Item | null>(null);
  useEffect(() => {
    if (selected) {
      onSelect?.(selected);
    }
  }, [selected]);
  return (
    <div className="flex items-center justify-between">
      <h2>{title}</h2>
      {items.map((item) => (
        <button key={item.id} onClick={() => setSelected(item)}>
          {item.name}
        </button>
      ))}
    </div>
  );
};

export default List;
---
const express = require('express');
const app = express();

app.get('/api/users/:id', async (req, res) => {
  try {
    const user = await db.query('SELECT * FROM users WHERE id = $1', [req.params.id]);
    if (!user) {
      return res.status(404).json({ error: 'Not found' });
    }
    res.json(user);
  } catch (error) {
    console.error(error);
    res.status(500).json({ message: error.message });
  }
});

module.exports = app;
---
use std::collections::HashMap;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Config {
    pub name: String,
    pub values: HashMap<String, Option<u64>>,
}

impl Config {
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), values: HashMap::new() }
    }

    pub async fn load(path: &Path) -> Result<Self, Error> {
        let text = tokio::fs::read_to_string(path).await?;
        Ok(serde_json::from_str(&text)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_works() {
        assert_eq!(Config::new("a").values.len(), 0);
    }
}
---
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

func (s *Server) handle(w http.ResponseWriter, r *http.Request) {
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for _, item := range request.Items {
		fmt.Fprintf(w, "%s: %d\\n", item.Name, item.Count)
	}
}
---
from fastapi import FastAPI, HTTPException, Depends
from pydantic import BaseModel, Field
from sqlalchemy import Column, Integer, String, ForeignKey
import numpy as np
import pandas as pd
import os
import sys
import json
import logging
from datetime import datetime
from typing import Any, Dict, List, Optional

logger = logging.getLogger(__name__)


class User(BaseModel):
    id: int
    name: str = Field(..., description="The name of the user")
    email: Optional[str] = None


def main():
    parser = argparse.ArgumentParser(description="")
    parser.add_argument("--output", type=str, default="output.json", help="")
    args = parser.parse_args()
    try:
        with open(args.output, "w") as f:
            json.dump(results, f, indent=2)
    except Exception as e:
        logger.error(f"Failed to write: {e}")
        raise ValueError("Invalid input")


if __name__ == "__main__":
    main()
---
CREATE TABLE IF NOT EXISTS users (
    id SERIAL PRIMARY KEY,
    email VARCHAR(255) NOT NULL UNIQUE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT NOW()
);
SELECT u.id, COUNT(*) AS count FROM users u LEFT JOIN orders o ON o.user_id = u.id WHERE u.email IS NOT NULL GROUP BY u.id ORDER BY count DESC LIMIT 10;
---
<!DOCTYPE html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <title>Document</title>
  <link rel="stylesheet" href="style.css">
</head>
<body>
  <script src="https://example.com/main.js"></script>
</body>
</html>
---
{
  "name": "app",
  "version": "1.0.0",
  "private": true,
  "type": "module",
  "scripts": {
    "dev": "vite",
    "build": "tsc && vite build",
    "test": "jest"
  },
  "dependencies": {
    "react": "^18.2.0",
    "typescript": "^5.4.0"
  },
  "devDependencies": {
    "eslint": "^8.57.0"
  }
}
---
version: '3.8'
services:
  db:
    image: postgres:16
    environment:
      POSTGRES_PASSWORD: password
    ports:
      - "5432:5432"
    volumes:
      - data:/var/lib/postgresql/data
---
#!/usr/bin/env bash
set -euo pipefail
if [ -z "${1:-}" ]; then
  echo "Usage: $0 <file>" >&2
  exit 1
fi
for file in "$@"; do
  echo "Processing $file"
done
""".strip().split("\n---\n")


class Corpus:
    """Samples in the shapes that banks hold."""

    def __init__(self) -> None:
        self._rng = random.Random(SEED)
        self._files = {
            name: text
            for name in _git("ls-files").splitlines()
            if not name.startswith(LEFT_OUT) and (text := _text(ROOT / name))
        }

    def samples(self) -> list[bytes | bytearray | memoryview]:
        made = [
            *map(self._stored, self._rounds()),
            *self._answers(),
            *(text.encode() for text in self._prose()),
            *(msgspec.msgpack.encode({"id": "a/1", "text": text}) for text in self._talk()),
        ]
        self._rng.shuffle(made)
        return [sample[:LONGEST] for sample in made]

    def _stored(self, messages: tuple[Message, ...]) -> bytes:
        """Messages as a piece of the turn log holds them."""
        rng = self._rng
        moment = 1_700_000_000_000_000 + rng.randrange(10**14)
        return msgspec.msgpack.encode(
            {
                "id": f"agent/session/{rng.randrange(10**4):08}/{rng.randrange(10**4):08}",
                "content": canonical.encode(messages),
                "salt": rng.randbytes(16),
                "link": rng.randbytes(32),
                "round": rng.randrange(1, 90),
                "time": moment,
                "ended": moment + rng.randrange(10**8),
            }
        )

    # Rounds of coding agents and chats --------------------------------------------------------

    def _rounds(self) -> Iterator[tuple[Message, ...]]:
        calls = [*self._reads(), *self._edits(), *self._searches(), *self._shells()]
        self._rng.shuffle(calls)
        for name, arguments, result in calls:
            yield self._round(name, arguments, result)
        for prose in self._prose():
            yield self._chat(prose)

    def _round(self, name: str, arguments: dict[str, Any], result: str) -> tuple[Message, ...]:
        rng = self._rng
        codex = rng.random() < 0.3
        call = self._id("call_" if codex else "toolu_01", 24)
        said = Message(
            role="assistant",
            parts=(
                *((Text(rng.choice(ASSISTANTS)),) if rng.random() < 0.5 else ()),
                *((Reasoning(rng.choice(ASSISTANTS)),) if rng.random() < 0.2 else ()),
                ToolCall(call, name, json.dumps(arguments, ensure_ascii=False)),
            ),
            id=self._id("resp_" if codex else "msg_01", 24),
            model="gpt-5-codex" if codex else "claude-sonnet-4-5-20250929",
            usage=Usage(
                input=rng.randrange(200_000),
                output=rng.randrange(2_000),
                cache_read=rng.randrange(200_000),
                cache_write=rng.randrange(9_000),
            ),
        )
        answer = ToolResult(call, (Text(result),), is_error=result.startswith("Exit code"))
        return said, Message(role="tool", parts=(answer,))

    def _chat(self, prose: str) -> tuple[Message, ...]:
        asked = Message(role="user", parts=(Text(self._rng.choice(USERS)),))
        said = self._rng.choice(ASSISTANTS)
        return asked, Message(role="assistant", parts=(Text(f"{said}\n\n{prose}"),))

    def _id(self, prefix: str, length: int) -> str:
        letters = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz123456789"
        return prefix + "".join(self._rng.choices(letters, k=length))

    def _path(self, name: str) -> str:
        return f"/home/user/project/{name}"

    def _reads(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        for name, text in self._files.items():
            for first, lines in _pages(text, 60):
                numbered = "\n".join(
                    f"{first + number:6}→{line}" for number, line in enumerate(lines)
                )
                yield "Read", {"file_path": self._path(name), "offset": first}, numbered
        for text in CODE * 3:
            yield "Read", {"file_path": self._path("src/app/main.ts")}, text

    def _edits(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        for name, text in self._files.items():
            if not name.endswith(".py"):
                continue
            for _, lines in _pages(text, 25):
                old, new = "\n".join(lines[:10]), "\n".join(lines[10:])
                where = self._path(name)
                done = f"The file {where} has been updated. Here's the result of running `cat -n`"
                yield "Edit", {"file_path": where, "old_string": old, "new_string": new}, done
        for text in CODE * 3:
            where = self._path("src/app/main.ts")
            done = f"File created successfully at: {where}"
            yield "Write", {"file_path": where, "content": text}, done

    def _searches(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        for word in ("def ", "import", "class", "return", "raise", "async", "assert", "self"):
            hits = [
                f"{name}:{number}:{line}"
                for name, text in self._files.items()
                for number, line in enumerate(text.splitlines(), 1)
                if word in line
            ]
            for at in range(0, len(hits) // 10, 30):
                wanted = {"pattern": word, "path": "src", "output_mode": "content"}
                yield "Grep", wanted, "\n".join(hits[at : at + 30])

    def _shells(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        rng = self._rng
        for _ in range(400):
            command = rng.choice(COMMANDS)
            output = rng.choice(OUTPUTS)
            if rng.random() < 0.5:
                call: dict[str, Any] = {
                    "command": command,
                    "description": "Run the tests and show the output",
                }
                yield "Bash", call, output
            else:
                call = {"command": ["bash", "-lc", command], "workdir": "/home/user/project"}
                yield "shell", call, _codex(output)
        for commit in _git("log", "--format=%h", "-150").split():
            diff = _git("show", "--stat", "-p", commit)
            for at in range(0, min(len(diff), 24_000), 4_000):
                yield "Bash", {"command": f"git show {commit}"}, diff[at : at + 4_000]

    def _prose(self) -> list[str]:
        """Documentation and docstrings, by paragraph or two."""
        found: list[str] = []
        for name, text in self._files.items():
            if name.endswith(".md"):
                found += re.split(r"\n(?=#)", text)
            elif name.endswith(".py"):
                found += re.findall(r'"""(.{200,}?)"""', text, re.DOTALL)
        return [each for each in found if len(each) > 80]

    def _talk(self) -> Iterator[str]:
        """What people and models say in chats, with their sentences in other orders."""
        sentences = [
            sentence
            for line in (*CHAT, *USERS, *ASSISTANTS)
            for sentence in re.split(r"(?<=[.!?]) ", line)
        ]
        for _ in range(1_500):
            yield " ".join(self._rng.sample(sentences, self._rng.randrange(1, 5)))

    # Answers of models, as the gateway keeps them ---------------------------------------------

    def _answers(self) -> Iterator[bytes]:
        rng = self._rng
        for text in self._prose()[::6]:
            said = f"{rng.choice(ASSISTANTS)} {text[:900]}"
            call = {"path": "src/app/session.py", "query": rng.choice(USERS)}
            taken, made = rng.randrange(20_000), rng.randrange(900)
            chat = {
                "id": self._id("chatcmpl-", 24),
                "object": "chat.completion",
                "created": rng.randrange(1_700_000_000, 1_800_000_000),
                "model": "gpt-4o-mini-2024-07-18",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": said, "refusal": None},
                        "logprobs": None,
                        "finish_reason": "stop",
                    }
                ],
                "usage": {
                    "prompt_tokens": taken,
                    "completion_tokens": made,
                    "total_tokens": taken + made,
                    "prompt_tokens_details": {"cached_tokens": 0},
                },
                "system_fingerprint": "fp_0123456789",
            }
            responses = {
                "id": self._id("resp_", 48),
                "object": "response",
                "status": "completed",
                "error": None,
                "output": [
                    {"type": "reasoning", "id": self._id("rs_", 48), "summary": []},
                    {
                        "type": "message",
                        "id": self._id("msg_", 48),
                        "role": "assistant",
                        "content": [{"type": "output_text", "text": said, "annotations": []}],
                    },
                    {
                        "type": "function_call",
                        "call_id": self._id("call_", 24),
                        "name": "read_file",
                        "arguments": json.dumps(call),
                        "status": "completed",
                    },
                ],
                "usage": {
                    "input_tokens": taken,
                    "input_tokens_details": {"cached_tokens": 0},
                    "output_tokens": made,
                    "output_tokens_details": {"reasoning_tokens": 0},
                    "total_tokens": taken + made,
                },
            }
            messages = {
                "id": self._id("msg_01", 22),
                "type": "message",
                "role": "assistant",
                "model": "claude-sonnet-4-5-20250929",
                "content": [
                    {"type": "thinking", "thinking": rng.choice(ASSISTANTS), "signature": ""},
                    {"type": "text", "text": said},
                    {
                        "type": "tool_use",
                        "id": self._id("toolu_01", 22),
                        "name": "Read",
                        "input": call,
                    },
                ],
                "stop_reason": "tool_use",
                "stop_sequence": None,
                "usage": {
                    "input_tokens": taken,
                    "cache_creation_input_tokens": 0,
                    "cache_read_input_tokens": 0,
                    "output_tokens": made,
                    "service_tier": "standard",
                },
            }
            yield from (json.dumps(each).encode() for each in (chat, responses, messages))


def _codex(output: str) -> str:
    return f"Exit code: 0\nWall time: 0.2 seconds\nOutput:\n{output}"


def _pages(text: str, size: int) -> Iterator[tuple[int, list[str]]]:
    lines = text.splitlines()
    for at in range(0, len(lines), size):
        yield at + 1, lines[at : at + size]


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (UnicodeDecodeError, OSError):
        return ""


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True, errors="replace"
    )
    return done.stdout


def train(size: int) -> bytes:
    samples = Corpus().samples()
    print(f"{len(samples):,} samples, {sum(map(len, samples)):,} bytes")
    made = zstandard.train_dictionary(size, samples, dict_id=NUMBER, level=6, k=512, d=6)
    return made.as_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=SIZE)
    parser.add_argument("--out", type=Path, default=TARGET)
    options = parser.parse_args()
    content = train(options.size)
    options.out.write_bytes(content)
    print(f"{options.out.name}: {len(content):,} bytes")


if __name__ == "__main__":
    main()
