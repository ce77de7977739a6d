package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// grpcurlName is the name under which the test's binary does what grpcurl does, for the commands of the documents.
const grpcurlName = "grpcurl"

// grpcurl sends a request in JSON to a method, which it knows by reflection alone, and prints the response:
// -plaintext [-d JSON] ADDRESS SERVICE/METHOD.
func grpcurl(args []string, out io.Writer) error {
	flags := flag.NewFlagSet(grpcurlName, flag.ContinueOnError)
	plain := flags.Bool("plaintext", false, "without TLS")
	data := flags.String("d", "{}", "the request, in JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if !*plain || flags.NArg() != 2 {
		return fmt.Errorf("want -plaintext [-d JSON] ADDRESS SERVICE/METHOD, got %q", args)
	}
	service, name, _ := strings.Cut(flags.Arg(1), "/")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := grpc.NewClient(flags.Arg(0), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	method, err := reflected(ctx, conn, service, name)
	if err != nil {
		return err
	}
	request, response := dynamicpb.NewMessage(method.Input()), dynamicpb.NewMessage(method.Output())
	if err := protojson.Unmarshal([]byte(*data), request); err != nil {
		return err
	}
	if err := conn.Invoke(ctx, "/"+service+"/"+name, request, response); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, protojson.Format(response))
	return err
}

// reflected asks a server for the description of a method.
func reflected(ctx context.Context, conn *grpc.ClientConn, service,
	name string) (protoreflect.MethodDescriptor, error) {
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return nil, err
	}
	err = stream.Send(&reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: service}})
	if err != nil {
		return nil, err
	}
	answer, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if e := answer.GetErrorResponse(); e != nil {
		return nil, fmt.Errorf("%s: %s", service, e.GetErrorMessage())
	}
	var described descriptorpb.FileDescriptorProto
	if err := proto.Unmarshal(answer.GetFileDescriptorResponse().GetFileDescriptorProto()[0], &described); err != nil {
		return nil, err
	}
	file, err := protodesc.NewFile(&described, protoregistry.GlobalFiles)
	if err != nil {
		return nil, err
	}
	found := file.Services().ByName(protoreflect.FullName(service).Name())
	if found == nil || found.Methods().ByName(protoreflect.Name(name)) == nil {
		return nil, fmt.Errorf("no method %s/%s", service, name)
	}
	return found.Methods().ByName(protoreflect.Name(name)), nil
}
