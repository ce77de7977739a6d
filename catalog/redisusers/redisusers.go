// Package redisusers keeps users in Redis or Valkey, one server or a cluster: a hash for each user, with a version (v)
// and a record of package catalog (d). A user is one key, so every change is one script on one node of a cluster.
//
// The version is the server's time in microseconds when the user was written, or one more than the version before. So
// it grows, also when a user is deleted and comes back.
package redisusers

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"grebe/catalog"
	"grebe/internal/redisconn"
)

// Within bounds a question to the server, beside the caller's deadline.
const Within = 2 * time.Second

// Config says where the users are.
type Config struct {
	Addresses          []string // host:port of a server, or of some nodes of a cluster
	Username, Password string
	Prefix             string // of every key
}

// Store keeps users. It is safe for concurrent use.
type Store struct {
	conn   *redisconn.Conn
	prefix string
}

var _ catalog.UserStore = (*Store)(nil)

// Open returns a store, which connects on its first use. The caller MUST Close it.
func Open(cfg Config) *Store {
	return &Store{prefix: cfg.Prefix, conn: redisconn.New(redisconn.Config{
		Addresses: cfg.Addresses, Username: cfg.Username, Password: cfg.Password,
		// one connection per server: after an outage none is stale
		Option: func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 }})}
}

// swap writes a user that still has the version ARGV[1].
var swap = rueidis.NewLuaScript(`
local v = redis.call('HGET', KEYS[1], 'v') or '0'
if v ~= ARGV[1] then return {'0', v, redis.call('HGET', KEYS[1], 'd') or ''} end
local t = redis.call('TIME')
local n = string.format('%.0f', math.max(tonumber(v) + 1, tonumber(t[1]) * 1000000 + tonumber(t[2])))
redis.call('HSET', KEYS[1], 'v', n, 'd', ARGV[2])
return {n}`)

// key returns a user's key. The braces have a cluster place it by the id alone.
func (s *Store) key(id string) string { return s.prefix + "{" + id + "}" }

// ask has the server carry out one command, a second time if a read was not answered. sent reports whether it may have.
func (s *Store) ask(ctx context.Context, reads bool,
	do func(context.Context, rueidis.Client) rueidis.RedisResult) (res rueidis.RedisResult, sent bool, err error) {
	within, cancel := context.WithTimeout(ctx, Within)
	defer cancel()
	client, err := s.conn.Client(within)
	if err == nil {
		var all []rueidis.RedisResult
		all, err = s.conn.Ask(within, func() []rueidis.RedisResult {
			res := do(within, client)
			if _, answered := rueidis.IsRedisErr(res.Error()); reads && res.Error() != nil && !answered && within.Err() == nil {
				res = do(within, client) // the connection was cut, and the client makes another
			}
			return []rueidis.RedisResult{res}
		})
		if sent = true; err == nil {
			res = all[0]
			if err = res.Error(); rueidis.IsRedisNil(err) {
				err = nil
			}
			if _, answered := rueidis.IsRedisErr(err); answered {
				sent = false // refused
			}
		}
		check := s.conn.Check
		if ctx.Err() != nil || client.Mode() == rueidis.ClientModeCluster {
			check = s.conn.CheckAlone // the caller was impatient, or users on other nodes can be read
		}
		err = check(within, "users", err)
	}
	if err != nil && ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	return res, sent, err
}

// Get implements catalog.UserStore.
func (s *Store) Get(ctx context.Context, id string) (record []byte, version uint64, err error) {
	res, _, err := s.ask(ctx, true, func(ctx context.Context, c rueidis.Client) rueidis.RedisResult {
		return c.Do(ctx, c.B().Hmget().Key(s.key(id)).Field("v", "d").Build())
	})
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", catalog.ErrUsers, err)
	}
	pair, err := res.ToArray()
	if err != nil || len(pair) != 2 {
		return nil, 0, fmt.Errorf("%w: a malformed user: %v", catalog.ErrUsers, err)
	}
	if pair[0].IsNil() {
		return nil, 0, nil
	}
	return read(pair)
}

// read returns the record and the version of a reply.
func read(pair []rueidis.RedisMessage) (record []byte, version uint64, err error) {
	v, err := pair[0].ToString()
	if err == nil {
		version, err = strconv.ParseUint(v, 10, 64)
	}
	var d string
	if err == nil {
		d, err = pair[1].ToString()
	}
	if err != nil {
		return nil, 0, fmt.Errorf("%w: a malformed user: %w", catalog.ErrUsers, err)
	}
	return []byte(d), version, nil
}

// Swap implements catalog.UserStore.
func (s *Store) Swap(ctx context.Context, id string, record []byte,
	version uint64) (next uint64, now []byte, at uint64, err error) {
	res, sent, err := s.ask(ctx, false, func(ctx context.Context, c rueidis.Client) rueidis.RedisResult {
		return swap.Exec(ctx, c, []string{s.key(id)}, []string{strconv.FormatUint(version, 10), rueidis.BinaryString(record)})
	})
	if err != nil {
		return 0, nil, 0, outcome(sent, err)
	}
	reply, err := res.ToArray()
	if err != nil || len(reply) != 1 && len(reply) != 3 {
		return 0, nil, 0, fmt.Errorf("%w: a malformed reply: %v", catalog.ErrUncertain, err)
	}
	if len(reply) == 3 {
		now, at, err = read(reply[1:])
		return 0, now, at, err
	}
	n, err := reply[0].ToString()
	if err == nil {
		next, err = strconv.ParseUint(n, 10, 64)
	}
	return next, nil, 0, err
}

// Delete implements catalog.UserStore.
func (s *Store) Delete(ctx context.Context, id string) (bool, error) {
	res, sent, err := s.ask(ctx, false, func(ctx context.Context, c rueidis.Client) rueidis.RedisResult {
		return c.Do(ctx, c.B().Del().Key(s.key(id)).Build())
	})
	if err != nil {
		return false, outcome(sent, err)
	}
	n, err := res.ToInt64()
	return n > 0, err
}

// outcome returns the error of a write.
func outcome(sent bool, err error) error {
	if sent {
		return fmt.Errorf("%w: the store of users: %w", catalog.ErrUncertain, err)
	}
	return fmt.Errorf("%w: %w", catalog.ErrUsers, err)
}

// Failing implements catalog.UserStore.
func (s *Store) Failing() error { return s.conn.Failing() }

// Close ends the connection.
func (s *Store) Close() error {
	s.conn.Close()
	return nil
}
