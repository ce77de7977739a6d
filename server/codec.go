package server

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxMessages bounds the messages nested in a message. An empty one takes two bytes on the wire and a hundred times
// as many in memory.
const maxMessages = 250_000

// boundedCodec refuses a message that would be far larger in memory than on the wire, before it decodes it. Package
// wire has the same bounds for JSON.
type boundedCodec struct{ encoding.CodecV2 }

func (c boundedCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("server: %T is not a message", v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	left := maxMessages
	if err := countMessages(buf.ReadOnlyData(), m.ProtoReflect().Descriptor(), &left); err != nil {
		return err
	}
	return proto.Unmarshal(buf.ReadOnlyData(), m)
}

// countMessages subtracts the messages nested in a message on the wire from left. The recursion is bounded because no
// message of the API contains itself.
func countMessages(b []byte, d protoreflect.MessageDescriptor, left *int) error {
	for len(b) > 0 {
		num, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		size := protowire.ConsumeFieldValue(num, kind, b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		if f := d.Fields().ByNumber(num); f != nil && f.Message() != nil && kind == protowire.BytesType {
			if *left--; *left < 0 {
				return errors.New("server: the message has too many parts")
			}
			inside, _ := protowire.ConsumeBytes(b)
			if err := countMessages(inside, f.Message(), left); err != nil {
				return err
			}
		}
		b = b[size:]
	}
	return nil
}
