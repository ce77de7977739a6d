#!/bin/sh
# Regenerates the Go code of api/grebe from its proto files, with protoc and the plugins that
# go.mod pins. Run by go generate.
set -eu
cd "$(dirname "$0")/.."
command -v protoc >/dev/null || { echo "generate: protoc is missing: install protobuf-compiler" >&2; exit 1; }
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
go build -o "$bin" google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
protoc -I api --plugin="$bin/protoc-gen-go" --plugin="$bin/protoc-gen-go-grpc" \
	--go_out=api --go_opt=paths=source_relative \
	--go-grpc_out=api --go-grpc_opt=paths=source_relative \
	api/grebe/v1/*.proto api/grebe/cluster/v1/*.proto
# The protoc version differs between machines and says nothing about the result.
sed -i -E '/^\/\/ (-|[[:space:]])*protoc[[:space:]]+v[0-9.]+$/d' api/grebe/v1/*.pb.go api/grebe/cluster/v1/*.pb.go
