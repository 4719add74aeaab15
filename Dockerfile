# heliomesh on a CPU:
#   docker build -t heliomesh .
#   docker run --rm -v "$PWD":/work heliomesh compare tiny
FROM python:3.12-slim
# An index with PyTorch for CPUs makes the image smaller by some gigabytes: --build-arg TORCH_INDEX=<its address>
ARG TORCH_INDEX=""
COPY pyproject.toml constraints.txt README.md LICENSE /src/
COPY heliomesh /src/heliomesh
RUN pip install --no-cache-dir --constraint /src/constraints.txt \
        ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} /src \
    && useradd --create-home user
USER user
WORKDIR /work
ENTRYPOINT ["heliomesh"]
CMD ["--help"]
