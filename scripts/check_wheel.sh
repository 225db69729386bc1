#!/usr/bin/env bash
# Tries the installed package as a user would, outside the source tree: train, evaluate, resume,
# plot, profile. Run it with the environment's bin directory first on PATH.
set -euo pipefail
cd "$(mktemp -d)"
redline --version
redline train ppo --env CartPole-v1 --total-env-steps 4096 --seed 1 --out run --quiet
redline train --resume run --total-env-steps 6144 --quiet
redline eval run --episodes 2
redline plot run --out curve.svg
redline train dqn --env CartPole-v1 --total-env-steps 1500 --learning-starts 200 --quiet --out dqn
if python -c "import redline.profile._native" 2>/dev/null; then
  redline profile --out session -- python -c "import gymnasium as g; e = g.make('CartPole-v1'); e.reset()"
  redline report session > report.txt
  test -s report.txt
elif redline profile --out session -- python -c "pass" 2>message.txt; then
  echo "a profile was recorded without the extension" >&2
  exit 1
else
  cat message.txt  # what is missing, and how to get it
fi
test -s curve.svg
echo "works: $(python --version), numpy $(python -c 'import numpy; print(numpy.__version__)')"
