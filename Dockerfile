# The demo, as an image: `make image` builds and runs it. Spark runs in the container, on all of its cores.
FROM python:3.13-slim-trixie

RUN apt-get update -q \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends make openjdk-21-jdk-headless \
    && rm -rf /var/lib/apt/lists/*

# Spark and the demo need no root.
RUN useradd --create-home demo
USER demo
WORKDIR /home/demo/lance-spark
COPY --chown=demo . .

RUN make .venv/.ready jar
ENTRYPOINT ["make", "demo"]
