package ingest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"grebe/catalog"
	"grebe/internal/cli"
)

// Stream follows a stream of changes. Exactly one of Kafka and Redis is set, and at most one of Server, Config and
// DataDir. A message is taken off the stream once its change is durable. One that comes twice changes nothing: items
// and users are replaced by the same, and events have ids.
type Stream struct {
	Kafka       []string // brokers
	Redis       string   // address of a server
	Topic       string   // or key of a Redis stream
	Group       string   // of consumers, which share the messages
	Consumer    string   // name of this one among them, which MUST be its own; Kafka: "" is none
	Kind        string   // "items", "users" or "events"
	Map, Lists  string   // as Import has them
	Server      string
	Config      string
	DataDir     string
	DeadLetters string // file for messages that cannot be read
	Metrics     string // address to serve metrics on; "": none
	Access      *cli.AccessFlags

	durable   func(n int64) // tests hear of changes before they are taken off the stream
	committed func(n int64) // and after
}

// message is a record of a stream.
type message struct {
	place string // where it came from, for messages
	key   string
	text  []byte // nil: the item or user of this key is deleted
}

// feed is where messages come from.
type feed interface {
	// poll waits for messages. It returns those that were not committed.
	poll(ctx context.Context) ([]message, error)
	// commit takes everything that poll returned off the stream.
	commit(ctx context.Context) error
	// lag returns the number of messages that wait, as far as known.
	lag() int64
	close()
}

// streamMetrics count what a Stream does.
type streamMetrics struct {
	messages *prometheus.CounterVec
	lag      prometheus.Gauge
}

func newStreamMetrics(reg *prometheus.Registry) *streamMetrics {
	m := &streamMetrics{
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "grebe_stream_messages_total",
			Help: "Messages of a stream by outcome: changed, unchanged (it was there already) or bad (in the dead-letter " +
				"file)."}, []string{"outcome"}),
		lag: prometheus.NewGauge(prometheus.GaugeOpts{Name: "grebe_stream_lag", Help: "Messages that wait in the stream."}),
	}
	reg.MustRegister(m.messages, m.lag)
	return m
}

// Run follows the stream until the context ends.
func (s *Stream) Run(w *cli.World) (err error) {
	if s.DeadLetters == "" || s.Topic == "" || s.Group == "" {
		return cli.Usagef("want --topic, --group and --dead-letters FILE")
	}
	for _, at := range append(slices.Clone(s.Kafka), s.Redis) {
		if strings.Contains(at, "@") || strings.Contains(at, "://") { // it may have a password: it is not repeated
			return cli.Usagef("--kafka and --redis take HOST:PORT, without a user and a password: other users of this machine " +
				"could see them. Run the stream where the broker asks for none")
		}
	}
	t, err := s.table()
	if err != nil {
		return err
	}
	im := &Import{Server: s.Server, Config: s.Config, DataDir: s.DataDir, Access: s.Access}
	dst, _, err := im.target(w)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.close()) }()
	letters, err := os.OpenFile(s.DeadLetters, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, letters.Close()) }()
	reg := prometheus.NewRegistry()
	f := &follower{s: s, w: w, dst: dst, letters: letters, table: t, metrics: newStreamMetrics(reg)}
	stop, err := s.serve(w, reg)
	if err != nil {
		return err
	}
	defer stop()
	if f.feed, err = s.open(w.Ctx); err != nil {
		return err
	}
	defer f.feed.close()
	fmt.Fprintf(w.Stderr, "Following %s as %s into %s\n", s.Topic, s.Group, dst.name())
	return f.follow(w.Ctx)
}

func (s *Stream) open(ctx context.Context) (feed, error) {
	if len(s.Kafka) > 0 {
		return newKafka(ctx, s)
	}
	return newRedisStream(ctx, s)
}

// table returns the columns of --map; nil: messages have the form of the API.
func (s *Stream) table() (*table, error) {
	if setters[s.Kind] == nil {
		return nil, cli.Usagef("--kind %q: want items, users or events", s.Kind)
	}
	pairs, err := parseMap(s.Map)
	if err != nil || len(pairs) == 0 {
		return nil, err
	}
	var columns []string
	for _, p := range pairs {
		columns = append(columns, p.column)
	}
	return newTable(s.Kind, columns, pairs, s.Lists)
}

// serve serves the metrics. The caller MUST call stop.
func (s *Stream) serve(w *cli.World, reg *prometheus.Registry) (stop func(), err error) {
	if s.Metrics == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", s.Metrics)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(w.Stderr, "Metrics: http://%s/metrics\n", l.Addr())
	srv := &http.Server{Handler: promhttp.HandlerFor(reg, promhttp.HandlerOpts{}), ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l) // it returns when it is closed
	}()
	return func() { _ = srv.Close(); <-done }, nil
}

// follower moves messages into a catalog.
type follower struct {
	s       *Stream
	w       *cli.World
	feed    feed
	dst     sink
	letters *os.File
	table   *table
	metrics *streamMetrics
	total   int64
}

// follow moves messages until the context ends. Whatever fails is tried again: nothing is taken off the stream before
// it is durable.
func (f *follower) follow(ctx context.Context) error {
	for tries := 0; ctx.Err() == nil; {
		messages, err := f.feed.poll(ctx)
		f.metrics.lag.Set(float64(f.feed.lag()))
		if err == nil && len(messages) > 0 {
			err = f.store(ctx, messages)
		}
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, catalog.ErrFailed) {
			return fmt.Errorf("%w: start again when the disk is repaired; no message is lost", err)
		}
		if err != nil {
			fmt.Fprintf(f.w.Stderr, "%s: %v: trying again\n", f.s.Topic, err)
			tries++
			wait(ctx, pause(tries))
			continue
		}
		tries = 0
	}
	return nil
}

// store makes messages durable, until that succeeds, and commits them.
func (f *follower) store(ctx context.Context, messages []message) error {
	lines := make([]line, len(messages))
	var n counts
	var problems []error
	err := f.until(ctx, func() (err error) {
		for i := range messages {
			lines[i] = f.decode(&messages[i])
		}
		n = counts{}
		if problems, err = f.dst.apply(ctx, f.s.Kind, lines, &n); err != nil {
			return err
		}
		for _, p := range problems {
			if errors.Is(p, catalog.ErrFull) { // no fault of the message: it waits for room
				return p
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	var bad int
	if err := f.until(ctx, func() (err error) { bad, err = f.bury(messages, lines, problems); return err }); err != nil {
		return err
	}
	f.total += int64(len(messages))
	if f.s.durable != nil {
		f.s.durable(f.total)
	}
	if err := f.feed.commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	f.metrics.messages.WithLabelValues("changed").Add(float64(n.Created + n.Replaced + n.Deleted))
	f.metrics.messages.WithLabelValues("unchanged").Add(float64(n.Unchanged))
	f.metrics.messages.WithLabelValues("bad").Add(float64(bad))
	if f.s.committed != nil {
		f.s.committed(f.total)
	}
	return nil
}

// until calls do again until it succeeds, less and less often. It fails when the context ends, or when the catalog
// takes no more writes until it is opened again.
func (f *follower) until(ctx context.Context, do func() error) error {
	for tries := 0; ; tries++ {
		err := do()
		if err == nil || errors.Is(err, catalog.ErrFailed) {
			return err
		}
		fmt.Fprintf(f.w.Stderr, "%s: %v: trying again\n", f.s.Topic, err)
		if wait(ctx, pause(tries)); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// pause is the time before another try: 100 ms at first, at most 10 s.
func pause(tries int) time.Duration { return min(100*time.Millisecond<<min(tries, 7), 10*time.Second) }

// decode decodes a message.
func (f *follower) decode(m *message) (l line) {
	if m.text == nil {
		if f.s.Kind == kindEvents || m.key == "" {
			l.err = errors.New("the message is empty")
			return l
		}
		l.text, l.err = json.Marshal(map[string]string{"delete": m.key})
		if l.err == nil {
			l.op, l.err = decodeLine(f.s.Kind, l.text)
		}
		return l
	}
	if f.table == nil {
		var text bytes.Buffer // a line: the message may have line breaks
		if err := json.Compact(&text, m.text); err != nil {
			l.err = fmt.Errorf("not JSON: %w", err)
			return l
		}
		l.text = text.Bytes()
		l.op, l.err = decodeLine(f.s.Kind, l.text)
		return l
	}
	cells, err := f.table.decodeMapped(m.text)
	if err == nil {
		l.op, err = f.table.op(cells)
	}
	l.err = f.table.in(err)
	return l
}

// bury appends the messages that cannot be read to the dead-letter file, durably.
func (f *follower) bury(messages []message, lines []line, problems []error) (bad int, err error) {
	var out []byte
	for i := range lines {
		problem := lines[i].err
		if problem == nil {
			problem = problems[i]
		}
		if problem == nil {
			continue
		}
		bad++
		text, err := json.Marshal(struct {
			Place string `json:"place"`
			Error string `json:"error"`
			Key   string `json:"key,omitempty"`
			Value []byte `json:"value"` // base64: it may be anything
		}{messages[i].place, problem.Error(), messages[i].key, messages[i].text})
		if err != nil {
			return 0, err
		}
		out = append(append(out, text...), '\n')
	}
	if bad == 0 {
		return 0, nil
	}
	end, err := f.letters.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	if _, err := f.letters.Write(out); err != nil {
		return 0, errors.Join(err, f.letters.Truncate(end)) // another try begins a line
	}
	return bad, f.letters.Sync()
}

// wait waits, or until the context ends.
func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
