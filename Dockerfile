# An image of this project with everything set up: docs/containers.md.
#
#   docker build -t bert .                                              # CPUs
#   docker build -t bert --build-arg CUDA=112 .                         # GPUs; has never run on one: docs/gpus.md
#
# Needs BuildKit (docker's default) or buildah 1.24, for the cache of wheels between builds. Layers, from what
# seldom changes to what often does: Debian packages; the environment, from what `make setup` reads; the code. A
# change of code copies some megabytes and builds nothing.

ARG BASE=debian:bookworm-slim
FROM ${BASE}

# Debian packages of setup/packages.py, Python, and an ssh server for mpirun. Keys that every container would share
# are removed: hosts/pod.py has its own. Gloo looks for the address of its host's own name, which not every
# builder gives a container: libnss-myhostname.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ca-certificates make procps python3 python3-dev python3-venv \
        g++ openmpi-bin libopenmpi-dev openssh-client openssh-server iproute2 libnuma-dev libgomp1 libquadmath0 libnss-myhostname \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*

# 1000 is the user of hosts/kubernetes.py. /opt/ml is SageMaker's.
ARG USER_ID=1000
RUN groupadd --gid ${USER_ID} bert \
    && useradd --uid ${USER_ID} --gid bert --create-home --shell /bin/bash bert \
    && install -d -o bert -g bert /opt/bert /opt/ml /opt/ml/code
USER bert
WORKDIR /opt/bert

# What the set-up works from, and no more: other files change more often.
COPY --chown=bert:bert Makefile requirements.txt requirements-build.txt requirements-cuda.txt ./
COPY --chown=bert:bert setup setup
COPY --chown=bert:bert native native
COPY --chown=bert:bert base/__init__.py base/errors.py base/machine.py base/processes.py base/
COPY --chown=bert:bert bert/__init__.py bert/configuration.py bert/operators.py bert/
ARG CUDA=cpu
ARG USER_ID=1000
RUN --mount=type=cache,target=/home/bert/.cache,uid=${USER_ID},gid=${USER_ID} \
    make setup CUDA=${CUDA} && rm -f setup*.log

COPY --chown=bert:bert . .
# Its entry point, where SageMaker's training toolkit looks for it if the image has that.
RUN ln -s /opt/bert/run_sagemaker.py /opt/ml/code/run_sagemaker.py

ENV PATH=/opt/bert/.venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    SAGEMAKER_PROGRAM=run_sagemaker.py
EXPOSE 2222
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["python", "hosts/health.py"]
CMD ["python", "hparams.py", "--help"]
