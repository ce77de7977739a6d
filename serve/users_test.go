package serve

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/catalog/redisusers"
	"grebe/embed/redisserver"
)

// Users may lie in Redis. While it is away, requests that name one get 503 and others are answered; readiness says so.
func TestUsersInRedis(t *testing.T) {
	r, err := redisserver.Start("--appendonly", "yes")
	if errors.Is(err, redisserver.ErrAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer r.Stop()
	store := redisusers.Open(redisusers.Config{Addresses: []string{r.Addr}, Prefix: "t:"})
	defer store.Close()
	s := newFake(t, func(c *Config) { c.Users = catalog.NewUsers(store, c.Catalog) })
	defer s.Close()
	ctx := t.Context()
	rank := func(u *grebev1.User) error {
		_, err := s.Rank(ctx, &grebev1.RankRequest{Model: "id", User: u, Candidates: []*grebev1.Item{{Id: "i1"}}})
		return err
	}
	stored, given := &grebev1.User{Id: "zoe"}, &grebev1.User{Tokens: []int32{1, 2}}
	if err := rank(stored); codeOf(err) != InvalidArgument {
		t.Errorf("an unknown user: %v", err)
	}
	if created, err := s.PutUser(ctx, &grebev1.User{Id: "zoe", Tokens: []int32{5, 6}}); err != nil || !created {
		t.Fatal(created, err)
	}
	resp, err := s.AppendEvents(ctx, "zoe", []*grebev1.Event{{Id: "1", Item: "x", Time: 1}, {Id: "1", Item: "x", Time: 1}})
	if err != nil || resp.Appended != 1 || resp.Duplicates != 1 || resp.Created {
		t.Errorf("%v, %v", resp, err)
	}
	if b, err := batch(ctx, s, true, `{"id":"yan","text":"a"}`+"\n"+`{"id":"yan","text":"b"}`); err != nil ||
		b.Created != 1 || b.Replaced != 1 {
		t.Errorf("%v, %v", b, err)
	}
	for text, want := range map[string]catalog.Result{"b": {}, "c": {Changed: true}} {
		op := &catalog.Op{PutUser: &grebev1.User{Id: "yan", Text: &text}}
		if res, err := s.Forecast().Foresee(ctx, op); err != nil || res != want {
			t.Errorf("foretold of %q: %+v, %v; want %+v", text, res, err, want)
		}
	}
	if u, err := s.User(ctx, "yan"); err != nil || u.GetText() != "b" {
		t.Errorf("%v, %v", u, err)
	}
	if _, there := s.catalog.User("zoe"); there {
		t.Error("the catalog has the user too")
	}
	if err := errors.Join(rank(stored), rank(given)); err != nil || len(s.Problems()) > 0 {
		t.Errorf("%v; problems %q", err, s.Problems())
	}

	r.Halt()
	if err := rank(stored); codeOf(err) != Unavailable || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("without Redis: %v", err)
	}
	if _, err := s.Forecast().Foresee(ctx, &catalog.Op{DeleteUser: "yan"}); codeOf(err) != Unavailable {
		t.Errorf("a forecast without Redis: %v", err)
	}
	if err := rank(given); err != nil {
		t.Errorf("a request that needs no store: %v", err)
	}
	if p := s.Problems(); len(p) != 1 || !strings.Contains(p[0], "store of users") {
		t.Errorf("problems %q", p)
	}
	if _, err := s.PutUser(ctx, &grebev1.User{Id: "new", Text: proto.String("a")}); codeOf(err) != Unavailable {
		t.Errorf("a write without Redis: %v", err)
	}
	if err := r.Resume(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); rank(stored) != nil ||
		len(s.Problems()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("Redis is back: %v, problems %q", rank(stored), s.Problems())
		}
	}
	if err := s.DeleteUser(ctx, "zoe"); err != nil {
		t.Error(err)
	}
	if err := rank(stored); codeOf(err) != InvalidArgument {
		t.Errorf("a deleted user: %v", err)
	}
	if err := s.DeleteUser(ctx, "zoe"); codeOf(err) != NotFound {
		t.Errorf("deleted again: %v", err)
	}
}
