package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"grebe/embed/redisserver"
	"grebe/internal/cli"
)

// followed runs a stream until it has made n messages durable. With lost it stops before they are taken off the stream.
func followed(t *testing.T, s *Stream, n int64, lost bool) string {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	enough := func(total int64) {
		if total >= n {
			stop()
		}
	}
	if s.durable, s.committed = nil, enough; lost {
		s.durable, s.committed = enough, nil
	}
	var b bytes.Buffer
	if err := s.Run(&cli.World{Ctx: ctx, Stdout: &b, Stderr: &b}); err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Fatalf("%d messages did not come\n%s", n, b.String())
	}
	return b.String()
}

// clicks are events of three users; one in a hundred cannot be read.
func clicks(from, to int) (out []string) {
	for i := from; i < to; i++ {
		if i%100 == 99 {
			out = append(out, fmt.Sprintf(`{"user":"u%d"}`, i))
			continue
		}
		out = append(out, fmt.Sprintf(`{"user":"u%d","item":"i%d","time":%d,"id":"e%d"}`, 1+i%3, i%7, 1000+i, i))
	}
	return out
}

// testStream follows a stream, is stopped before it takes messages off, and goes on: all events are there once.
func testStream(t *testing.T, s Stream, produce func(lines []string)) {
	dir := t.TempDir()
	s.Kind, s.Group, s.Lists = kindEvents, "shop", ";"
	s.DataDir, s.DeadLetters = filepath.Join(dir, "data"), filepath.Join(dir, "dead.ndjson")
	lines := clicks(0, 3000)
	produce(lines[:1000])
	followed(t, &s, 1, true)
	followed(t, &s, 1000, false)
	produce(lines[1000:])
	followed(t, &s, 2000, false) // and not one of those before

	var want strings.Builder
	for _, l := range lines {
		if strings.Contains(l, "item") {
			want.WriteString(l + "\n")
		}
	}
	other := filepath.Join(dir, "other")
	run(t, &Import{Files: []string{file(t, "events.ndjson", []byte(want.String()))}, DataDir: other}, nil)
	if got, want := contents(t, s.DataDir), contents(t, other); got != want {
		t.Errorf("the stream left %s\nwant %s", got, want)
	}
	dead, err := os.ReadFile(s.DeadLetters)
	if n := bytes.Count(dead, []byte("item: is missing")); err != nil || n < 30 {
		t.Errorf("%d dead letters, want at least 30: %v", n, err)
	}
}

func TestKafka(t *testing.T) {
	brokers, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "clicks"))
	if err != nil {
		t.Fatal(err)
	}
	defer brokers.Close()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers.ListenAddrs()...), kgo.DefaultProduceTopic("clicks"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	testStream(t, Stream{Kafka: brokers.ListenAddrs(), Topic: "clicks"}, func(lines []string) {
		var records []*kgo.Record
		for _, l := range lines {
			records = append(records, kgo.StringRecord(l))
		}
		if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestRedisStream(t *testing.T) {
	server, err := redisserver.Start()
	if errors.Is(err, redisserver.ErrAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	testStream(t, Stream{Redis: server.Addr, Topic: "clicks", Consumer: "one"}, func(lines []string) {
		for _, l := range lines {
			if err := client.Do(t.Context(), client.B().Xadd().Key("clicks").Id("*").FieldValue().FieldValue(
				"value", l).Build()).Error(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A stream that cannot be reached ends with an error that says where, and what to check.
func TestUnreachableStream(t *testing.T) {
	const nowhere = "127.0.0.1:1"
	for want, s := range map[string]*Stream{
		"kafka: .* does a broker run at " + nowhere: {Kafka: []string{nowhere}},
		"redis: .* does it run at " + nowhere:       {Redis: nowhere, Consumer: "one"},
	} {
		dir := t.TempDir()
		s.Topic, s.Kind, s.Group, s.Lists = "clicks", kindEvents, "shop", ";"
		s.DataDir, s.DeadLetters = filepath.Join(dir, "data"), filepath.Join(dir, "dead.ndjson")
		var b bytes.Buffer
		err := s.Run(&cli.World{Ctx: t.Context(), Stdout: &b, Stderr: &b})
		if err == nil || !regexp.MustCompile(want).MatchString(err.Error()) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// Changes of items come as records, with columns of any name, and a record without a value deletes.
func TestItemsFromAStream(t *testing.T) {
	s := &Stream{Kind: kindItems, Map: "id=sku,text=title", Lists: ";"}
	table, err := s.table()
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{s: s, table: table}
	if l := f.decode(&message{text: []byte(`{"sku":7,"title":"tent","other":1}`)}); l.err != nil ||
		l.op.PutItem.Id != "7" || l.op.PutItem.GetText() != "tent" {
		t.Errorf("%+v", l)
	}
	if l := f.decode(&message{key: "7"}); l.err != nil || l.op.DeleteItem != "7" {
		t.Errorf("%+v", l)
	}
	if l := f.decode(&message{text: []byte(`{"sku":[7]}`)}); l.err == nil ||
		l.err.Error() != "column sku: want a text, not a list" {
		t.Errorf("%v", l.err)
	}
	for _, bad := range []*Stream{{Kind: "things"}, {Kind: kindItems, Map: "x=y"}, {Kind: kindItems, Map: "text=y"}} {
		if _, err := bad.table(); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}
