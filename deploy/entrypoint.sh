#!/bin/sh
# Put the passwords that compose.yaml hands over as files where PostgreSQL's clients look for them, then become the command.
#
# NAME_password below /run/secrets is that of the role NAME. The file that $PGPASSFILE names is read by libpq and by asyncpg, so no
# password stands in an address or in the environment.
set -eu
: "${SECRETS:=/run/secrets}"

fail() {
  echo "sfumato: $1" >&2
  exit 2
}

if [ -n "${PGPASSFILE:-}" ]; then
  lines=
  for file in "$SECRETS"/*_password; do
    [ -e "$file" ] || fail "no password in $SECRETS: run deploy/new-secrets.sh, and start again"
    [ -r "$file" ] || fail "$file cannot be read by user $(id -u): build the image with --build-arg UID= and the number of its owner"
    role=$(basename "$file" _password)
    password=$(sed -e 's/\\/\\\\/g' -e 's/:/\\:/g' "$file")
    [ -n "$password" ] || fail "$file is empty: remove it, run deploy/new-secrets.sh, and start again"
    lines="$lines*:*:*:$role:$password
"
  done
  (umask 077 && printf '%s' "$lines" > "$PGPASSFILE")
fi
exec "$@"
