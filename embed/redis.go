package embed

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// RedisConfig says where a table is.
type RedisConfig struct {
	Addresses []string // host:port of a server, or of some nodes of a cluster
	Username  string
	Password  string
	Prefix    string // of every key of the table; after it come the eight bytes of the row's key, big-endian
	RowBytes  int
	// Pause is how long the server is not asked after it failed, so that an outage costs requests no
	// deadline each; 50 ms.
	Pause time.Duration
	Dial  time.Duration // how long making a connection may take; 1 s
}

// Redis is a Store in Redis or Valkey, one server or a cluster: a string per row. It connects when it can, and again after an
// outage; until then operations return ErrUnavailable, or what the connection said.
//
// Where somebody watches, the server tells of every row that anybody changes (CLIENT TRACKING with BCAST). When a
// connection is lost, changes may have been missed: as soon as the server answers again, all rows count as changed. Until
// then cached ones are used as they are.
type Redis struct {
	cfg      RedisConfig
	watchers []func(keys []uint64)
	lost     chan struct{} // a connection was
	ended    chan struct{}

	mu         sync.Mutex
	client     rueidis.Client
	connecting chan struct{} // closed when the attempt under way ended; nil when there is none
	failed     error
	until      time.Time // not asked before
	closed     bool
	attempts   sync.WaitGroup
	asking     chan struct{} // a place for every read under way
}

const (
	// mostAsking bounds reads under way, with those that nobody waits for any more.
	mostAsking = 256
	// lateness is how long after its deadline a read may still come: then a cluster says what it has from the nodes that answer.
	lateness = 5 * time.Millisecond
)

// NewRedis makes the store; it connects on the first use.
func NewRedis(cfg RedisConfig) (*Redis, error) {
	if len(cfg.Addresses) == 0 {
		return nil, errors.New("embed: a table in Redis without an address")
	}
	if cfg.RowBytes <= 0 {
		return nil, fmt.Errorf("embed: a table in Redis with rows of %d bytes", cfg.RowBytes)
	}
	if cfg.Pause <= 0 {
		cfg.Pause = 50 * time.Millisecond
	}
	if cfg.Dial <= 0 {
		cfg.Dial = time.Second
	}
	return &Redis{cfg: cfg, lost: make(chan struct{}, 1), ended: make(chan struct{}), asking: make(chan struct{}, mostAsking)}, nil
}

// Watch calls changed with the keys of rows that were changed by anybody, nil: any may have been. A connection that was made before anybody
// watched tells nothing: it is made anew. Reads under way fail then, so call it before requests come.
func (r *Redis) Watch(changed func(keys []uint64)) {
	r.mu.Lock()
	for r.connecting != nil { // it may not know yet that somebody watches
		wait := r.connecting
		r.mu.Unlock()
		<-wait
		r.mu.Lock()
	}
	r.watchers = append(r.watchers, changed)
	first := len(r.watchers) == 1
	var deaf rueidis.Client
	if first {
		deaf, r.client = r.client, nil
		r.attempts.Go(r.mend)
	}
	r.mu.Unlock()
	if deaf != nil {
		deaf.Close()
	}
}

// invalidated hears from the server what was changed, or nil when a connection ends or all is deleted.
func (r *Redis) invalidated(names []rueidis.RedisMessage) {
	if names == nil {
		select {
		case r.lost <- struct{}{}:
		default:
		}
		return
	}
	keys := make([]uint64, 0, len(names))
	for i := range names {
		if name, err := names[i].ToString(); err == nil && len(name) == len(r.cfg.Prefix)+8 {
			keys = append(keys, binary.BigEndian.Uint64([]byte(name[len(r.cfg.Prefix):])))
		}
	}
	for _, changed := range r.watchers {
		changed(keys)
	}
}

// mend waits after a loss until the server answers, and tells the watchers then.
func (r *Redis) mend() {
	for {
		select {
		case <-r.ended:
			return
		case <-r.lost:
		}
		for !r.answers() {
			select {
			case <-r.ended:
				return
			case <-time.After(r.cfg.Pause):
			}
		}
		for _, changed := range r.watchers {
			changed(nil)
		}
	}
}

func (r *Redis) answers() bool {
	ctx, cancel := context.WithTimeout(context.Background(), r.cfg.Dial)
	defer cancel()
	client, err := r.connected(ctx)
	return err == nil && client.Do(ctx, client.B().Ping().Build()).Error() == nil
}

// connected returns the client, waiting for a connection until ctx is done.
func (r *Redis) connected(ctx context.Context) (rueidis.Client, error) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, fmt.Errorf("embed: the table was closed: %w", ErrUnavailable)
	}
	if time.Now().Before(r.until) {
		defer r.mu.Unlock()
		return nil, fmt.Errorf("embed: %w: %w", ErrUnavailable, r.failed)
	}
	if r.client != nil {
		defer r.mu.Unlock()
		return r.client, nil
	}
	if r.connecting == nil {
		r.connecting = make(chan struct{})
		r.attempts.Go(r.connect)
	}
	wait := r.connecting
	r.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("embed: connect to Redis: %w", ctx.Err())
	case <-wait:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client == nil {
		return nil, fmt.Errorf("embed: %w: %w", ErrUnavailable, r.failed)
	}
	return r.client, nil
}

func (r *Redis) connect() {
	option := rueidis.ClientOption{
		InitAddress: r.cfg.Addresses, Username: r.cfg.Username, Password: r.cfg.Password,
		DisableCache: true, DisableRetry: true, ReadBufferEachConn: 1 << 20, WriteBufferEachConn: 1 << 18,
		Dialer: net.Dialer{Timeout: r.cfg.Dial}, ConnWriteTimeout: 5 * time.Second,
		DialCtxFn: func(ctx context.Context, address string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			conn, err := d.DialContext(ctx, "tcp", address)
			if err != nil {
				return nil, err
			}
			return checkReplies(conn, r.cfg.RowBytes), nil
		},
	}
	if len(r.watchers) > 0 {
		option.DisableCache, option.OnInvalidations = false, r.invalidated
		option.ClientTrackingOptions = []string{"PREFIX", r.cfg.Prefix, "BCAST", "NOLOOP"}
		option.PipelineMultiplex = -1 // one connection per server, which is not told of its own changes
	}
	client, err := newClient(option)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && r.closed {
		client.Close()
		err = ErrUnavailable
	}
	if err != nil {
		r.fail(fmt.Errorf("connect to Redis at %s: %w", strings.Join(r.cfg.Addresses, ", "), err))
	} else {
		r.client = client
	}
	close(r.connecting)
	r.connecting = nil
}

// newClient is rueidis.NewClient. A panic over what a server said is an error.
func newClient(option rueidis.ClientOption) (client rueidis.Client, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("a malformed reply: %v", p)
		}
	}()
	return rueidis.NewClient(option)
}

// fail begins a pause. The caller holds mu.
func (r *Redis) fail(err error) { r.failed, r.until = err, time.Now().Add(r.cfg.Pause) }

// check looks at an operation's error: one that Redis answered is passed on, any other begins a pause, except
// that the caller gave up.
func (r *Redis) check(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	if _, answered := rueidis.IsRedisErr(err); !answered && !errors.Is(ctx.Err(), context.Canceled) {
		r.mu.Lock()
		r.fail(err)
		r.mu.Unlock()
	}
	return fmt.Errorf("embed: %s in Redis: %w", what, err)
}

// names returns the keys' names, all cut from one string.
func (r *Redis) names(keys []uint64) []string {
	n := len(r.cfg.Prefix) + 8
	all := make([]byte, 0, n*len(keys))
	for _, k := range keys {
		all = binary.BigEndian.AppendUint64(append(all, r.cfg.Prefix...), k)
	}
	whole := string(all)
	out := make([]string, len(keys))
	for i := range out {
		out[i] = whole[i*n : (i+1)*n]
	}
	return out
}

// ask calls read in a goroutine and returns when it is done or, soon, when ctx is: the client may wait for a connection that another
// call is making, whatever ctx says. What read returns after that nobody sees, so it MUST NOT write to the caller's memory.
func (r *Redis) ask(ctx context.Context, read func() []rueidis.RedisResult) ([]rueidis.RedisResult, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r.asking <- struct{}{}:
	}
	answer := make(chan []rueidis.RedisResult, 1)
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		<-r.asking
		return nil, ErrUnavailable
	}
	r.attempts.Go(func() {
		answer <- read()
		<-r.asking
	})
	r.mu.Unlock()
	select {
	case a := <-answer:
		return a, nil
	case <-ctx.Done():
	}
	select {
	case a := <-answer:
		return a, nil
	case <-time.After(lateness):
		return nil, ctx.Err()
	}
}

// Gather is one MGET, or a pipeline to each node of a cluster.
func (r *Redis) Gather(ctx context.Context, keys []uint64, rows []byte, found []bool) error {
	if len(keys) == 0 {
		return nil
	}
	client, err := r.connected(ctx)
	if err != nil {
		return err
	}
	names := r.names(keys)
	if client.Mode() == rueidis.ClientModeCluster {
		return r.gatherCluster(ctx, client, names, rows, found)
	}
	results, err := r.ask(ctx, func() []rueidis.RedisResult {
		return []rueidis.RedisResult{client.Do(ctx, client.B().Mget().Key(names...).Build())}
	})
	var values []rueidis.RedisMessage
	if err == nil {
		values, err = results[0].ToArray()
	}
	if err != nil {
		return r.check(ctx, fmt.Sprintf("gather %d rows", len(keys)), err)
	}
	var broken []int
	for i := range values {
		broken = r.take(&values[i], i, rows, found, broken)
	}
	return brokenRows(broken)
}

// gatherCluster asks for each row by itself, since nodes fail by themselves.
func (r *Redis) gatherCluster(ctx context.Context, client rueidis.Client, names []string, rows []byte, found []bool) error {
	results, err := r.ask(ctx, func() []rueidis.RedisResult {
		commands := make([]rueidis.Completed, len(names))
		for i, name := range names {
			commands[i] = client.B().Get().Key(name).Build()
		}
		return client.DoMulti(ctx, commands...)
	})
	what := fmt.Sprintf("gather %d rows", len(names))
	if err != nil {
		return r.check(ctx, what, err)
	}
	var broken []int
	var gone OutageError
	for i := range results {
		v, err := results[i].ToMessage()
		said, answered := rueidis.IsRedisErr(err)
		switch {
		case err == nil || rueidis.IsRedisNil(err):
			broken = r.take(&v, i, rows, found, broken)
		case answered && strings.HasPrefix(said.Error(), "WRONGTYPE"):
			found[i], broken = false, append(broken, i)
		default:
			found[i], gone.Rows, gone.Err = false, append(gone.Rows, i), err
		}
	}
	switch len(gone.Rows) {
	case 0:
		return brokenRows(broken)
	case len(names):
		return r.check(ctx, what, gone.Err)
	}
	return errors.Join(brokenRows(broken), &gone)
}

// take copies a row, or appends to broken that it is none.
func (r *Redis) take(v *rueidis.RedisMessage, i int, rows []byte, found []bool, broken []int) []int {
	if found[i] = false; v.IsNil() {
		return broken
	}
	s, err := v.ToString()
	if err != nil || len(s) != r.cfg.RowBytes {
		return append(broken, i)
	}
	row := rows[i*r.cfg.RowBytes:][:r.cfg.RowBytes]
	copy(row, s)
	if found[i] = finite(row); !found[i] {
		return append(broken, i)
	}
	return broken
}

// Put writes rows in one go.
func (r *Redis) Put(ctx context.Context, keys []uint64, rows []byte) error {
	if err := checkRows(keys, rows, r.cfg.RowBytes); err != nil || len(keys) == 0 {
		return err
	}
	return r.each(ctx, keys, "put", func(client rueidis.Client, i int, name string) rueidis.Completed {
		row := rows[i*r.cfg.RowBytes:][:r.cfg.RowBytes]
		return client.B().Set().Key(name).Value(rueidis.BinaryString(row)).Build()
	})
}

// Delete removes rows in one go.
func (r *Redis) Delete(ctx context.Context, keys []uint64) error {
	return r.each(ctx, keys, "delete", func(client rueidis.Client, _ int, name string) rueidis.Completed {
		return client.B().Del().Key(name).Build()
	})
}

// each pipelines a command per key.
func (r *Redis) each(ctx context.Context, keys []uint64, what string, command func(rueidis.Client, int, string) rueidis.Completed) error {
	client, err := r.connected(ctx)
	if err != nil {
		return err
	}
	commands := make([]rueidis.Completed, len(keys))
	for i, name := range r.names(keys) {
		commands[i] = command(client, i, name)
	}
	for _, res := range client.DoMulti(ctx, commands...) {
		if err := res.Error(); err != nil {
			return r.check(ctx, fmt.Sprintf("%s %d rows", what, len(keys)), err)
		}
	}
	return nil
}

// RowBytes returns the size of a row.
func (r *Redis) RowBytes() int { return r.cfg.RowBytes }

// Close ends the connections.
func (r *Redis) Close() error {
	r.mu.Lock()
	if !r.closed {
		close(r.ended)
	}
	r.closed = true
	client := r.client
	r.client = nil
	r.mu.Unlock()
	if client != nil {
		client.Close()
	}
	r.attempts.Wait()
	return nil
}
