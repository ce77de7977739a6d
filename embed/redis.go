package embed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"grebe/internal/redisconn"
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

// Redis is a Store in Redis or Valkey, one server or a cluster: a string per row. It connects when it can, and again
// after an outage; until then operations return ErrUnavailable, or what the connection said.
//
// Where somebody watches, the server tells of every row that anybody changes (CLIENT TRACKING with BCAST). When a
// connection is lost, changes may have been missed: as soon as the server answers again, all rows count as changed.
// Until then cached ones are used as they are.
type Redis struct {
	cfg      RedisConfig
	conn     *redisconn.Conn
	watchers []func(keys []uint64) // changed while no connection is made
	lost     chan struct{}         // a connection was
	ended    chan struct{}
	mending  sync.WaitGroup
	close    sync.Once
}

// NewRedis makes the store; it connects on the first use.
func NewRedis(cfg RedisConfig) (*Redis, error) {
	if len(cfg.Addresses) == 0 {
		return nil, errors.New("embed: a table in Redis without an address")
	}
	if cfg.RowBytes <= 0 {
		return nil, fmt.Errorf("embed: a table in Redis with rows of %d bytes", cfg.RowBytes)
	}
	r := &Redis{cfg: cfg, lost: make(chan struct{}, 1), ended: make(chan struct{})}
	r.conn = redisconn.New(redisconn.Config{Addresses: cfg.Addresses, Username: cfg.Username, Password: cfg.Password,
		Pause: cfg.Pause, Dial: cfg.Dial, Option: r.option})
	return r, nil
}

// Watch calls changed with the keys of rows that were changed by anybody, nil: any may have been. A connection that was
// made before anybody watched tells nothing: it is made anew. Reads under way fail then, so call it before requests
// come.
func (r *Redis) Watch(changed func(keys []uint64)) {
	r.conn.Renew(func() bool {
		r.watchers = append(r.watchers, changed)
		if len(r.watchers) > 1 {
			return false
		}
		r.mending.Go(r.mend)
		return true
	})
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
		for !r.conn.Answers() {
			select {
			case <-r.ended:
				return
			case <-time.After(r.conn.Pause()):
			}
		}
		for _, changed := range r.watchers {
			changed(nil)
		}
	}
}

// option makes a client hear of changes if somebody watches.
func (r *Redis) option(o *rueidis.ClientOption) {
	if len(r.watchers) > 0 {
		o.DisableCache, o.OnInvalidations = false, r.invalidated
		o.ClientTrackingOptions = []string{"PREFIX", r.cfg.Prefix, "BCAST", "NOLOOP"}
		o.PipelineMultiplex = -1 // one connection per server, which is not told of its own changes
	}
}

// connected returns the client, waiting for a connection until ctx is done.
func (r *Redis) connected(ctx context.Context) (rueidis.Client, error) {
	client, err := r.conn.Client(ctx)
	if err != nil {
		err = fmt.Errorf("embed: %w", err)
	}
	return client, err
}

// check looks at an operation's error.
func (r *Redis) check(ctx context.Context, what string, err error) error {
	if err = r.conn.Check(ctx, what, err); err != nil {
		err = fmt.Errorf("embed: %w", err)
	}
	return err
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
	results, err := r.conn.Ask(ctx, func() []rueidis.RedisResult {
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
func (r *Redis) gatherCluster(ctx context.Context, client rueidis.Client, names []string, rows []byte,
	found []bool) error {
	results, err := r.conn.Ask(ctx, func() []rueidis.RedisResult {
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
func (r *Redis) each(ctx context.Context, keys []uint64, what string,
	command func(rueidis.Client, int, string) rueidis.Completed) error {
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
	r.close.Do(func() { close(r.ended) })
	r.conn.Close()
	r.mending.Wait()
	return nil
}
