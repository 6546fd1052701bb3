# bertpre in a container, for CPUs or NVIDIA GPUs. docs/how-to/container.md shows how to build and start it.
#   docker build -t bertpre:cuda .
#   docker run --rm -v "$PWD:/workspace" bertpre:cuda quickstart
FROM python:3.12.12-slim-bookworm

# torch.compile generates C++ for CPUs, Triton a launcher in C for GPUs: both call a compiler when training starts.
# The base image is pinned; an exact version of g++ would disappear from Debian with its next update.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*

# On x86 torch's default build runs on CPUs and NVIDIA GPUs. With PIP_EXTRA_INDEX_URL set to the CPU index that PyTorch's
# installation page names, pip takes the build for CPUs alone, which is gigabytes smaller.
ARG PIP_EXTRA_INDEX_URL
# torch comes first: it is the largest layer, and a code change does not rebuild it.
WORKDIR /opt/bertpre
COPY constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt torch

COPY . .
RUN pip install --no-cache-dir -c constraints.txt ".[dedup,export,tensorboard]"

# The commit, as the image has no .git: --build-arg GIT_COMMIT="$(git rev-parse --short HEAD)"
ARG GIT_COMMIT=
ENV GIT_COMMIT=$GIT_COMMIT
LABEL org.opencontainers.image.revision=$GIT_COMMIT \
      org.opencontainers.image.licenses=Apache-2.0

# With `docker run --user ID` the id has no home directory: this one serves any user. /cache holds what is worth keeping.
ENV HOME=/home/bertpre \
    HF_HOME=/cache/huggingface \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor \
    TRITON_CACHE_DIR=/cache/triton
RUN useradd --uid 1000 --create-home bertpre && mkdir /workspace /cache && chmod 777 /workspace /cache /home/bertpre
USER 1000
VOLUME ["/cache"]
WORKDIR /workspace
ENTRYPOINT ["bertpre"]
CMD ["quickstart"]
