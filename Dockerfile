# CPU:   docker build -t lengthgen .
# CUDA:  docker build -t lengthgen:cuda --build-arg TORCH=cu128 .
# Runs are written to the present folder:
#   docker run --rm -v "$PWD:/work" lengthgen train scheme=rope
#   docker run --rm --gpus all --ipc host -v "$PWD:/work" lengthgen:cuda train scheme=rope train=gpu
FROM python:3.12-slim

# torch.compile builds kernels with a C++ compiler.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

# A build of https://download.pytorch.org/whl: cpu, cu126, cu128 ... The wheels contain the CUDA libraries.
ARG TORCH=cpu
RUN pip install --no-cache-dir torch --index-url "https://download.pytorch.org/whl/${TORCH}"

COPY pyproject.toml README.md LICENSE /opt/lengthgen/
COPY conf /opt/lengthgen/conf
COPY lengthgen /opt/lengthgen/lengthgen
RUN pip install --no-cache-dir /opt/lengthgen

WORKDIR /work
ENTRYPOINT ["lengthgen"]
