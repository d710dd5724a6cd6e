# How the demo tells its story. Sourced after ../lib.sh.

STEP=0

# step TEXT: the headline of the next step.
step() {
  STEP=$((STEP + 1))
  banner "$STEP. $*"
}

say() { printf '    %s\n' "$*"; }

indent() { sed -u 's,^,    ,'; }

# show COMMAND...: prints the command as one would type it, then runs it.
show() {
  printf '    $ %s\n' "$*"
  "$@" 2>&1 | indent
}

# until_true SECONDS WHAT COMMAND...: waits for a condition; what it waits for is named when it does not come.
until_true() {
  local seconds=$1 what=$2 end
  shift 2
  end=$(($(date +%s) + seconds))
  until "$@"; do
    [[ $(date +%s) -lt $end ]] || die "waited ${seconds}s in vain: $what"
    sleep 0.3
  done
}
