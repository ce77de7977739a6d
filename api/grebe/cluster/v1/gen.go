// Package clusterv1 holds the messages and the gRPC services between processes of a cluster, generated
// from the proto files beside it. The generated files are committed; run go generate after a change of a proto.
package clusterv1

//go:generate sh ../../../generate.sh
