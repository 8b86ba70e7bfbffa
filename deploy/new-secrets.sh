#!/bin/sh
# Make the passwords that compose.yaml names, below deploy/secrets and readable by their owner alone. One that is there stays.
set -eu
umask 077
folder=$(dirname "$0")/secrets
mkdir -p "$folder"
for role in postgres prefect mlflow ledger; do
  file=$folder/${role}_password
  if [ -s "$file" ]; then
    echo "$file stays"
  else
    od -An -N24 -tx1 /dev/urandom | tr -d ' \n' > "$file.new"
    mv "$file.new" "$file"
    echo "$file is new"
  fi
done
