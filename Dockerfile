# bertpre in a container, started where the recipe and the texts are; runs land there too:
#   docker build -t bertpre .
#   docker run --rm -v "$PWD:/workspace" bertpre                                          the quickstart, in runs/quickstart
#   docker run --rm -v "$PWD:/workspace" bertpre run recipe.yaml corpus.path=texts.jsonl
# The user inside has the id 1000; if yours is another, add --user "$(id -u)", so that it may write here.
#
# On NVIDIA GPUs, with the NVIDIA container toolkit on the host, one or several:
#   docker run --rm --gpus all -v "$PWD:/workspace" bertpre run recipe.yaml
#   docker run --rm --gpus all --ipc=host -v "$PWD:/workspace" --entrypoint accelerate bertpre \
#     launch --multi_gpu /opt/bertpre/pretrain.py recipe.yaml
FROM python:3.12-slim

# torch.compile writes C++ for CPUs, and Triton a launcher in C for GPUs: both call a compiler when training begins.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*

# On x86 the usual torch runs on CPUs and GPUs alike. The build for CPUs alone is some gigabytes smaller:
#   docker build -t bertpre --build-arg PIP_EXTRA_INDEX_URL=(the CPU index named on PyTorch's installation page) .
ARG PIP_EXTRA_INDEX_URL
# torch comes first: it is the largest layer, and a change of the code does not build it again.
WORKDIR /opt/bertpre
COPY constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt torch

COPY . .
RUN pip install --no-cache-dir -c constraints.txt .

# With --user the id has no home of its own: this one, which holds the caches, serves whoever it is.
ENV HOME=/home/bertpre
RUN useradd --uid 1000 --create-home bertpre && mkdir /workspace && chmod 777 /workspace /home/bertpre
USER bertpre
WORKDIR /workspace
ENTRYPOINT ["bertpre"]
CMD ["quickstart"]
