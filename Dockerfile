# bertpre in a container. On CPUs:
#   docker build -t bertpre .
#   docker run --rm -v "$PWD/runs:/work/runs" bertpre                                the quickstart, in runs/quickstart
#   docker run --rm -v "$PWD:/work" bertpre run recipe.yaml corpus.path=texts.jsonl  a recipe and a corpus of your own
# /work is where the command starts and where relative paths lead. The container's user has the id 1000; if yours is
# another, add `--user "$(id -u)"`, so that it may write to the mounted folder.
#
# On NVIDIA GPUs, with the NVIDIA container toolkit on the host:
#   docker build -t bertpre-gpu --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126 .
#   docker run --rm --gpus all --ipc=host -v "$PWD:/work" bertpre-gpu run recipe.yaml
#   docker run --rm --gpus all --ipc=host -v "$PWD:/work" --entrypoint accelerate bertpre-gpu launch /opt/bertpre/pretrain.py recipe.yaml
FROM python:3.12-slim

# torch.compile writes C++ for CPUs and calls the compiler when the training begins.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*

# torch first and by itself: it is the largest layer, and a change of the code does not rebuild it.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /opt/bertpre
COPY constraints.txt ./
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" "$(grep '^torch==' constraints.txt)"

COPY . .
RUN pip install --no-cache-dir -c constraints.txt .

# Any user may write to these, so that `--user` works; the caches of the Hub and of compiled code are in HOME.
RUN useradd --uid 1000 --create-home bertpre && mkdir /work && chmod 777 /work /home/bertpre
USER bertpre
ENV HOME=/home/bertpre
WORKDIR /work
ENTRYPOINT ["bertpre"]
CMD ["quickstart"]
