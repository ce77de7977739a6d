package ingest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// redisStream reads a stream of Redis as a consumer of a group.
type redisStream struct {
	client               rueidis.Client
	key, group, consumer string
	from                 string    // ">": new entries; "0": own entries that were not acknowledged
	claimed              time.Time // when entries of other consumers were last looked for
	ids                  []string  // to acknowledge
	waits                int64
}

// idleEntries is how long another consumer may have an entry before this one takes it over.
const idleEntries = time.Minute

func newRedisStream(ctx context.Context, s *Stream) (*redisStream, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Redis}, DisableCache: true})
	if err != nil {
		return nil, fmt.Errorf("redis: %w: does it run at %s?", err, s.Redis)
	}
	r := &redisStream{client: client, key: s.Topic, group: s.Group, consumer: s.Consumer, from: "0"}
	err = client.Do(ctx, client.B().XgroupCreate().Key(r.key).Group(r.group).Id("0").Mkstream().Build()).Error()
	if err != nil && !strings.HasPrefix(err.Error(), "BUSYGROUP") {
		client.Close()
		return nil, fmt.Errorf("redis: create the group %s: %w", r.group, err)
	}
	return r, nil
}

// poll returns entries: first those that this consumer, or one that is gone, had and did not acknowledge.
// After a failure it reads its own entries again: the answer with new ones may have been lost.
func (r *redisStream) poll(ctx context.Context) ([]message, error) {
	out, err := r.read(ctx)
	if err != nil {
		r.from = "0"
	}
	return out, err
}

// claim takes over entries that another consumer has had for too long.
func (r *redisStream) claim(ctx context.Context) error {
	for at := "0"; ; {
		reply, err := r.client.Do(ctx, r.client.B().Xautoclaim().Key(r.key).Group(r.group).Consumer(r.consumer).
			MinIdleTime(fmt.Sprint(idleEntries.Milliseconds())).Start(at).Count(pollMessages).Justid().Build()).ToArray()
		if err != nil {
			return err
		}
		if len(reply) < 2 {
			return errors.New("XAUTOCLAIM: the answer is too short")
		}
		ids, err := reply[1].ToArray()
		if err != nil {
			return err
		}
		if len(ids) > 0 {
			r.from = "0"
		}
		if at, err = reply[0].ToString(); err != nil || at == "0-0" {
			return err
		}
	}
}

func (r *redisStream) read(ctx context.Context) ([]message, error) {
	if time.Since(r.claimed) > idleEntries {
		if err := r.claim(ctx); err != nil {
			return nil, err
		}
		r.claimed = time.Now()
	}
	r.ids = r.ids[:0]
	got, err := r.client.Do(ctx, r.client.B().Xreadgroup().Group(r.group, r.consumer).Count(pollMessages).Block(1000).
		Streams().Key(r.key).Id(r.from).Build()).AsXRead()
	if rueidis.IsRedisNil(err) {
		return nil, nil // nothing came
	}
	if err != nil {
		return nil, err
	}
	entries := got[r.key]
	if len(entries) == 0 && r.from != ">" {
		r.from = ">"
		return nil, nil
	}
	var out []message
	for _, e := range entries {
		m := message{place: r.key + "/" + e.ID, text: []byte(e.FieldValues["value"])}
		if _, whole := e.FieldValues["value"]; !whole { // the fields are those of the record
			if m.text, err = json.Marshal(e.FieldValues); err != nil {
				return nil, err
			}
		}
		out, r.ids = append(out, m), append(r.ids, e.ID)
	}
	return out, nil
}

func (r *redisStream) commit(ctx context.Context) error {
	if len(r.ids) > 0 {
		if err := r.client.Do(ctx, r.client.B().Xack().Key(r.key).Group(r.group).Id(r.ids...).Build()).Error(); err != nil {
			r.from = "0" // before newer entries, which an old one must not undo later
			return err
		}
		r.ids = r.ids[:0]
	}
	groups, err := r.client.Do(ctx, r.client.B().XinfoGroups().Key(r.key).Build()).ToArray()
	if err != nil {
		return err
	}
	for i := range groups {
		g, err := groups[i].AsMap()
		if err != nil {
			return err
		}
		name, lag := g["name"], g["lag"]
		if text, err := name.ToString(); err != nil || text != r.group {
			continue
		}
		if n, err := lag.AsInt64(); err == nil {
			r.waits = n
		}
		return nil
	}
	return errors.New("the group is gone")
}

func (r *redisStream) lag() int64 { return r.waits }

func (r *redisStream) close() { r.client.Close() }
