# The two images of Callgate, one target each:
#
#   docker build --target controller -t callgate-controller .
#   docker build --target runner -t callgate-runner .
#
# The project's own tests do not build this file: the local cluster needs no Docker, its images are made by
# hack/samples/images from the same binaries. Whoever changes one of the two changes the other.
#
# Pin the base by digest when you build for production; the tag alone is what can be written down without a registry.

FROM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# Static, without paths of the build machine: the runner is executed inside images that have no libc.
ENV CGO_ENABLED=0 GOFLAGS=-trimpath
RUN go build -ldflags '-s -w' -o /out/callgate ./cmd/callgate
RUN go build -ldflags '-s -w' -o /out/callgate-runner ./cmd/callgate-runner

FROM scratch AS controller
# No CA bundle: the controller talks only to the API server, whose CA comes with its ServiceAccount.
COPY --from=build /out/callgate /callgate
USER 65532:65532
ENTRYPOINT ["/callgate"]

# Mounted read-only in a folder of each sandbox's own as an image volume, so the file must be /runner. It is never started
# from this image.
FROM scratch AS runner
COPY --from=build --chmod=0555 /out/callgate-runner /runner
USER 65532:65532
ENTRYPOINT ["/runner"]
