package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestOrdinary(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{io.EOF, true},
		{fmt.Errorf("apply: %w", context.Canceled), true},
		{status.Error(codes.Canceled, "context canceled"), true},
		{status.Error(codes.FailedPrecondition, "replica: this node does not lead"), true},
		{status.FromProto(status.Convert(errClosing).Proto()).Err(), true}, // as it comes from another node
		{status.Error(codes.Unavailable, "connection refused"), false},
		{status.Error(codes.AlreadyExists, "another catalog"), false},
		{errSilent, false},
		{errors.New("disk full"), false},
	} {
		if got := ordinary(c.err); got != c.want {
			t.Errorf("ordinary(%v) = %v", c.err, got)
		}
	}
}
