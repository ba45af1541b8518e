# Perdure's Claude Code plugin: finds the project that a session is in, and runs its own script.
# Outside of projects that were set up (`perdure project init`) hooks do nothing.
what=$1
dir=${CLAUDE_PROJECT_DIR:-$PWD}
home=
while [ -n "$dir" ]; do
  if [ -d "$dir/.git" ]; then
    home=$dir/.git/perdure
    break
  elif [ -f "$dir/.git" ]; then
    IFS= read -r line <"$dir/.git"
    git=${line#gitdir: }
    case $git in /*) ;; *) git=$dir/$git ;; esac
    common=
    [ ! -r "$git/commondir" ] || IFS= read -r common <"$git/commondir"
    case $common in '') common=$git ;; /*) ;; *) common=$git/$common ;; esac
    home=$(cd "$common" 2>/dev/null && pwd)/perdure
    break
  elif [ -d "$dir/.perdure/local" ]; then
    home=$dir/.perdure/local
    break
  fi
  dir=${dir%/*}
done
if [ "$what" = mcp ]; then
  # Without a project the server says so itself, if Perdure can be found.
  [ ! -r "$home/client-hook.sh" ] || exec sh "$home/client-hook.sh" claude-code mcp
  exec perdure mcp
fi
[ -r "$home/client-hook.sh" ] || exit 0
# `project init` may have put the same hooks into the project's own settings.
main=${home%/*}
case $main in */.git) main=${main%/.git} ;; */.perdure) main=${main%/.perdure} ;; esac
! grep -q 'perdure/client-hook\.sh\|\.perdure/local/client-hook\.sh' \
  "$main/.claude/settings.local.json" 2>/dev/null || exit 0
exec sh "$home/client-hook.sh" claude-code "$what"
