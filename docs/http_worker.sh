#!/bin/sh
# A worker for a queue of kind "pull": runs a command for each job, its body on stdin. Needs curl and jq.
#   DELAYQ_URL=https://example.org/delayq DELAYQ_TOKEN=… ./http_worker.sh QUEUE COMMAND [ARGUMENT…]
set -u
queue=$1; shift
body=$(mktemp); output=$(mktemp); stop=
trap 'rm -f "$body" "$output"' EXIT
trap 'stop=1' INT TERM # it ends when the job in hand has

post() { # VERB: sends stdin, and prints the answer; fails on an error, or without an answer
  curl --silent --fail --max-time 40 --data-binary @- -H "Authorization: Token $DELAYQ_TOKEN" \
    -H 'Content-Type: application/json' "$DELAYQ_URL/v1/queues/$queue/$1"
}

settle() { # VERB MEMBERS: sends how the job ended; repeats that until there is a response
  for pause in 1 5 10 30 60 0; do
    if answer=$(printf '%s' "$held" | jq -c --argjson more "$2" '{jobs: [. + $more]}' | post "$1"); then
      printf '%s' "$answer" | jq -r '.results[] | select(.counted | not) | "lost the lease of \(.id)"' >&2
      return
    fi
    sleep "$pause"
  done
}

while [ -z "$stop" ]; do
  jobs=$(echo '{"wait": 20, "ttr": 600}' | post reserve) || { sleep 5; continue; }
  held=$(printf '%s' "$jobs" | jq -c '.jobs[] | {id, lease}')
  [ -n "$held" ] || { sleep 1; continue; }
  printf '%s' "$jobs" | jq -r '.jobs[] | .body_base64 // (.body | @base64)' | base64 -d >"$body"
  if "$@" <"$body" >"$output" 2>&1; then
    settle ack '{}'
  else
    settle fail "$(tail -c 2000 "$output" | jq -Rs '{error: .}')"
  fi
done
