package serve

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"go.uber.org/goleak"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/internal/wire"
	"grebe/serve/servetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakes returns a configuration with models "id" (identifier), "pw" (pointwise) and "raw" (no tokenizer), and a small
// catalog.
func fakes(t testing.TB) Config {
	t.Helper()
	f, b := &servetest.Runner{}, servetest.NewBuilder(t, servetest.Tokenizer{})
	const vocab, positions = servetest.Vocab, servetest.Positions
	return Config{
		Models: []Model{
			{Name: "id", Runner: f, Prompt: b, Vocab: vocab, Positions: positions},
			{Name: "pw", Runner: f, Prompt: b, Vocab: vocab, Positions: positions,
				Scoring: Scoring{Kind: Pointwise, Yes: servetest.Yes, No: servetest.No}},
			{Name: "raw", Runner: f, Prompt: servetest.NewBuilder(t, nil), Vocab: vocab},
		},
		Catalog: servetest.NewCatalog(t),
		SLO:     10 * time.Second, // the machine may be slow
	}
}

// newFake opens a service of fakes, after some changes to the configuration.
func newFake(t testing.TB, change ...func(*Config)) *Service {
	t.Helper()
	cfg := fakes(t)
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// exposed returns a service's metrics as text.
func exposed(t testing.TB, s *Service) string {
	t.Helper()
	families, err := s.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	enc := expfmt.NewEncoder(&b, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// codeOf returns the code of an error, or "" for nil.
func codeOf(err error) Code {
	if err == nil {
		return ""
	}
	return AsError(err).code
}

// batch changes items or users by lines, one write at a time.
func batch(ctx context.Context, s *Service, users bool, lines string) (*grebev1.BatchResponse, error) {
	places := make(chan struct{}, 1)
	place := func(ctx context.Context) (func(), error) {
		places <- struct{}{}
		return func() { <-places }, ctx.Err()
	}
	var from *Import
	if !users {
		var err error
		if from, err = s.Import("", false, false); err != nil {
			return nil, err
		}
	}
	b := s.NewBatch(ctx, from, place)
	n := int64(0)
	for line := range strings.Lines(lines) {
		n++
		b.Count()
		var op catalog.Op
		var err error
		if users {
			op.PutUser, op.DeleteUser, err = wire.DecodeUserLine([]byte(line))
		} else {
			op.PutItem, op.DeleteItem, err = wire.DecodeItemLine([]byte(line))
		}
		if err == nil {
			err = b.Add(n, op, len(line))
		}
		if err != nil {
			return b.End(err)
		}
	}
	return b.End(nil)
}
