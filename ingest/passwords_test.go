package ingest

import (
	"io"
	"path/filepath"
	"strings"
	"testing"

	"grebe/internal/cli"
)

// An address with a password is refused, and not repeated.
func TestPasswordsInAddresses(t *testing.T) {
	items := file(t, "items.ndjson", []byte(`{"id":"1"}`+"\n"))
	for _, at := range []string{"http://u:s3cret@127.0.0.1:1", "http://u:s3cret/x@127.0.0.1:1", "u:s3cret@127.0.0.1:1"} {
		out := run(t, &Import{Files: []string{items}, Server: at, Access: &cli.AccessFlags{}}, nil)
		if !strings.Contains(out, "--key-file") || strings.Contains(out, "s3cret") {
			t.Errorf("--server %s: %s", at, out)
		}
	}
	for _, at := range []string{"mysql://shop:s3cret/9@db/shop", "postgres://shop:123#s3cret@db/shop",
		"mysql://a:s3cret%zz@db/x", "mysql://shop:1/s3cret@db/shop"} {
		for _, c := range []*Import{{From: at}, {From: "env:SHOP"}} {
			c.Query = "SELECT 1"
			out := queried(t, c, "SHOP="+at)
			if !strings.Contains(out, "#, % and : of a user or a password as %2F") || strings.Contains(out, "s3cret") {
				t.Errorf("--from %s with %s: %s", c.From, at, out)
			}
		}
	}
	for _, s := range []*Stream{{Redis: "redis://:s3cret@127.0.0.1:1"}, {Redis: ":s3cret@127.0.0.1:1"},
		{Kafka: []string{"127.0.0.1:1", "u:s3cret@127.0.0.1:1"}}} {
		s.Topic, s.Group, s.Kind, s.DataDir = "clicks", "g", "events", t.TempDir()
		s.DeadLetters = filepath.Join(t.TempDir(), "bad")
		err := s.Run(&cli.World{Ctx: t.Context(), Stdout: io.Discard, Stderr: io.Discard})
		if err == nil || !strings.Contains(err.Error(), "HOST:PORT") || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%v %v: %v", s.Redis, s.Kafka, err)
		}
	}
}
