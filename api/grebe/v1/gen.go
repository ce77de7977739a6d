// Package grebev1 holds the messages and the gRPC service of Grebe's API, generated from
// grebe.proto. The generated files are committed; run go generate after a change of the proto.
package grebev1

//go:generate sh ../../generate.sh
