package ahead

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"

	"grebe/bench/drive"
)

// things is how many things one-shot users bought. Their texts are a third of a prompt.
const things = 25

// reuse measures servers with indexing and without.
func (s *site) reuse(ctx context.Context) (*Reuse, error) {
	hot := s.hot()
	users := filepath.Join(s.dir, "users.ndjson")
	if err := s.writeUsers(users, hot); err != nil {
		return nil, err
	}
	r := &Reuse{Requests: s.o.Requests}
	for _, mode := range []string{"on", "off"} {
		if err := s.oneShot(ctx, mode, users, hot, r); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// oneShot starts a cold server, leaves it idle and has each user come once.
func (s *site) oneShot(ctx context.Context, mode, users string, hot []string, r *Reuse) (err error) {
	server, err := s.start(ctx, drive.Setting{Key: "cache.ahead", Value: mode},
		drive.Setting{Key: "catalog.users", Value: users})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	client := &http.Client{}
	defer client.CloseIdleConnections()
	fmt.Fprintf(s.o.Progress, "reuse: cache.ahead %s\n", mode)
	if mode == "on" {
		if err := wait(ctx, s.o.Idle); err != nil {
			return err
		}
		p, err := indexing(ctx, client, http.MethodGet, server.URL)
		if err != nil {
			return err
		}
		r.Items = p.Computed
	}
	var all, first usage // of the first tenth of the requests
	random := rand.New(rand.NewPCG(23, 1))
	for n := range s.o.Requests {
		ids := make([]string, s.o.Candidates)
		for i, at := range random.Perm(len(hot))[:s.o.Candidates] {
			ids[i] = hot[at]
		}
		u, err := rank(ctx, client, server.URL, "auto", stranger(uint64(n), things), ids)
		if err != nil {
			return fmt.Errorf("ranking %d: %w", n, err)
		}
		all.Prompt, all.Cached = all.Prompt+u.Prompt, all.Cached+u.Cached
		if n < (s.o.Requests+9)/10 {
			first = all
		}
	}
	if mode == "off" {
		r.Off, r.OffFirst = all.reused(), first.reused()
		return nil
	}
	r.Ahead, r.First, r.Tokens = all.reused(), first.reused(), float64(all.Prompt)/float64(s.o.Requests)
	// What could be reused at most: the same request again with all items cached, by a user who says nothing that is
	// known.
	r.Most, err = s.most(ctx, client, server.URL, hot)
	return err
}

// most returns the share of a prompt's tokens that is reused where all of its items are cached.
func (s *site) most(ctx context.Context, client *http.Client, base string, hot []string) (float64, error) {
	ids := hot[:s.o.Candidates]
	var u usage
	for n := range uint64(2) {
		var err error
		if u, err = rank(ctx, client, base, "item", stranger(1<<32+n, things), ids); err != nil {
			return 0, err
		}
	}
	return u.reused(), nil
}
