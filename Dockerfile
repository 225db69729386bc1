# Redline with all that its two commands need. On the CPU:
#
#   docker build --tag redline .
#   docker run --rm --shm-size 2g redline make demo
#   docker run --rm --shm-size 2g redline make test
#   docker run --rm --shm-size 2g --volume "$PWD/runs:/redline/runs" redline \
#     redline train ppo --env CartPole-v1 --out runs/cartpole
#
# With CUDA (torch's build of PyPI brings its libraries; the host needs NVIDIA's container toolkit):
#
#   docker build --tag redline:cuda --build-arg TORCH_INDEX=https://pypi.org/simple .
#   docker run --rm --shm-size 2g --gpus all redline:cuda redline train ppo --env CartPole-v1 --device cuda
#
# --shm-size: Docker gives /dev/shm 64 MB, in which workers and Ray share rollouts.

FROM python:3.12-slim-bookworm

# The compiler is for the extensions and for --accelerate compile; libgomp is torch's OpenMP; Mesa
# draws MuJoCo's frames without a screen.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends \
      gcc g++ libc6-dev git make libgomp1 libosmesa6 \
 && rm -rf /var/lib/apt/lists/*

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_EXTRA_INDEX_URL=$TORCH_INDEX \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1 \
    MUJOCO_GL=osmesa \
    PATH=/redline/.venv/bin:$PATH

WORKDIR /redline
COPY . .
RUN make .venv/.dev
CMD ["redline", "--help"]
