# bertpre in a container. Start it in the folder with the recipe and the texts; it writes its runs there:
#   docker build -t bertpre .
#   docker run --rm -v "$PWD:/workspace" bertpre                                          the quickstart, in runs/quickstart
#   docker run --rm -v "$PWD:/workspace" bertpre run recipe.yaml corpus.path=texts.jsonl
# The user inside has the id 1000. If yours is different, add --user "$(id -u)" so that it may write here.
#
# On one or several NVIDIA GPUs, with the NVIDIA container toolkit on the host:
#   docker run --rm --gpus all -v "$PWD:/workspace" bertpre run recipe.yaml
#   docker run --rm --gpus all --ipc=host -v "$PWD:/workspace" --entrypoint accelerate bertpre \
#     launch --multi_gpu /opt/bertpre/pretrain.py recipe.yaml
FROM python:3.12-slim

# torch.compile generates C++ for CPUs, Triton a launcher in C for GPUs: both call a compiler when training starts.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*

# On x86 the default build of torch runs on CPUs and GPUs. The CPU-only build is some gigabytes smaller:
#   docker build -t bertpre --build-arg PIP_EXTRA_INDEX_URL=(the CPU index named on PyTorch's installation page) .
ARG PIP_EXTRA_INDEX_URL
# torch comes first: it is the largest layer, and a code change does not rebuild it.
WORKDIR /opt/bertpre
COPY constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt torch

COPY . .
RUN pip install --no-cache-dir -c constraints.txt .

# With --user the id has no home directory: this one holds the caches for any user.
ENV HOME=/home/bertpre
RUN useradd --uid 1000 --create-home bertpre && mkdir /workspace && chmod 777 /workspace /home/bertpre
USER bertpre
WORKDIR /workspace
ENTRYPOINT ["bertpre"]
CMD ["quickstart"]
