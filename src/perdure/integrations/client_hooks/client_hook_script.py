"""The shell of the clients' hooks: POSIX sh, written into the project's folder with its Python.

    sh client-hook.sh CLIENT EVENT <input

Events that are only noted append one line to the spool and start a background import, which they
do not wait for: some milliseconds. SessionStart runs `session_start` with a bare Python,
UserPromptSubmit `prompt_recall`. In a pause (`perdure pause`) nothing of it is done. Whatever
happens, the client sees exit code 0, and no output but what is meant for the model.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from perdure.config.pauses import pauses_file

#: The name of the script in the project's folder.
SCRIPT_NAME = "client-hook.sh"
#: Seconds between two imports that tools and starts begin; the end of a turn always begins one.
EVERY = 60

#: The input begins with session_id and transcript_path, in any client: only that is read, and the
#: rest, which may be megabytes of a tool's output, is thrown away. Strings stay as JSON has them.
#: A line stays below 4,000 bytes, so that it is one write, and begins with a newline: a torn one
#: before it does not take it along.
_SCRIPT = r"""# Perdure: a hook of a coding client. Written by `perdure project init`.
home=${0%/*} client=$1 event=$2
python=@python@
package=@package@
pauses=@pauses@
trap '' XFSZ PIPE
if [ "$event" = mcp ]; then exec "$python" -P -m perdure mcp; fi
exec 2>/dev/null
[ -d "$home/spool" ] || exit 0
if [ -s "$pauses" ]; then
  until=; while read -r _ line; do until=$line; done <"$pauses"
  if [ "$until" = - ] || [ "$(date +%s)" -lt "$until" ]; then
    cat >/dev/null
    exit 0
  fi
fi
field() {
  value=
  case $head in *"\"$1\":\""*)
    value=${head#*"\"$1\":\""}
    value=${value%%\"*} ;;
  esac
}
note() {
  head=$(dd bs=2500 count=1)
  cat >/dev/null
  field session_id; session=$value
  field transcript_path; transcript=$value
  field cwd
  now=$(date +%s)
  printf '\n1\t%s\t%s\t%s\t%s\t%s\t%s\n' \
    "$now" "$event" "$client" "$session" "$transcript" "$value" >>"$home/spool/clients"
}
complain() {
  printf '\n1\t%s\t%s\t%s\t%s\n' "$(date +%s)" "$event" "$client" "$1" >>"$home/client-failures"
}
# A process of its own, which has nothing of this one: not its pipes, not its folder.
start() {
  printf '%s\n' "$now" >"$home/spool/started"
  (
    exec </dev/null >/dev/null 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-
    trap '' HUP INT
    cd / && exec "$python" -P -m perdure.integrations.client_hooks import "$home"
  ) &
}
start_sometimes() {
  last=0
  IFS= read -r last <"$home/spool/started"
  [ $((now - ${last:-0})) -lt @every@ ] || start
}
if [ ! -x "$python" ]; then
  complain "There is no $python."
  case $event in SessionStart | UserPromptSubmit) cat >/dev/null ;; *) note ;; esac
  exit 0
fi
case $event in
SessionStart)
  "$python" -I -S "$package/session_start.py" "$home" "$client" || complain "exit code $?"
  now=$(date +%s)
  start_sometimes ;;
UserPromptSubmit)
  "$python" -P -m perdure.integrations.client_hooks prompt "$home" "$client" ||
    complain "exit code $?" ;;
PostToolUse)
  note
  start_sometimes ;;
*)
  note
  start ;;
esac
exit 0
"""


def client_hook_script() -> str:
    """The script, for this Python and this installation."""
    values = {
        "@python@": shlex.quote(sys.executable),
        "@package@": shlex.quote(str(Path(__file__).parent)),
        "@pauses@": shlex.quote(str(pauses_file())),
        "@every@": str(EVERY),
    }
    text = _SCRIPT
    for name, value in values.items():
        text = text.replace(name, value)
    return text
