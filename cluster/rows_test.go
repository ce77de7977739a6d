package cluster

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	grebev1 "grebe/api/grebe/v1"
	"grebe/cluster/coord/coordtest"
	"grebe/embed"
	"grebe/pool"
	"grebe/route"
	"grebe/serve"
)

// farRows is a store of rows of 32 bytes that are a millisecond away.
type farRows struct{ embed.Store }

func (farRows) Gather(_ context.Context, keys []uint64, rows []byte, found []bool) error {
	time.Sleep(time.Millisecond)
	clear(rows)
	for i := range keys {
		found[i] = true
	}
	return nil
}

func (farRows) RowBytes() int { return 32 }

// tableWith returns a table of whose 1,024 items some were looked up twice.
func tableWith(t *testing.T, keys ...uint64) *embed.Table {
	t.Helper()
	p, err := pool.New(1<<20, 4096)
	if err != nil {
		t.Fatal(err)
	}
	cache, err := embed.NewCache(p, embed.Config{Rows: 4096, RowBytes: 32})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cache.Close()
		p.Close()
	})
	table, err := embed.NewTable(farRows{}, cache, embed.TableConfig{})
	if err != nil {
		t.Fatal(err)
	}
	table.CountShards(embed.MostShards)
	table.Gather(t.Context(), []uint64{1000}, make([]byte, 32)) // the first round trip is not measured
	for range 4 {
		table.Gather(t.Context(), keys, make([]byte, 32*len(keys)))
	}
	return table
}

// rankRows asks at a member for an answer that needs rows of these shards.
func (n *testNode) rankRows(ctx context.Context, shards []uint32) (*grebev1.RankResponse, error) {
	req := &grebev1.RankRequest{Model: "m", Explain: true}
	a := &serve.Asked{Op: "rank", Model: "m", Message: req, Start: time.Now(), Deadline: time.Now().Add(5 * time.Second),
		Shards: shards, UserRows: 100_000}
	resp, err := n.Answer(ctx, a, func(ctx context.Context) (proto.Message, error) { return n.local.Rank(ctx, req) })
	if err != nil {
		return nil, err
	}
	return resp.(*grebev1.RankResponse), nil
}

// Answers say why their node gave them if they were asked for that, rankings and recommendations.
func TestExplained(t *testing.T) {
	p := &pick{}
	p.choice.Ms, p.choice.Reuse = 12, 7
	for _, explain := range []bool{false, true} {
		rank := &serve.Asked{Message: &grebev1.RankRequest{Explain: explain}}
		recommend := &serve.Asked{Message: &grebev1.RecommendRequest{Explain: explain}}
		a := explained(rank, &grebev1.RankResponse{}, p, "user").(*grebev1.RankResponse).Route
		b := explained(recommend, &grebev1.RecommendResponse{}, p, "user").(*grebev1.RecommendResponse).Route
		for _, r := range []*grebev1.Route{a, b} {
			if (r != nil) != explain || explain && (r.Reason != "user" || r.PredictedMs != 12 || r.PredictedCached != 7) {
				t.Errorf("asked %v: %v", explain, r)
			}
		}
	}
	none := &serve.Asked{Message: &grebev1.RecommendRequest{Explain: true}}
	if r := explained(none, (*grebev1.RecommendResponse)(nil), p, "user"); r.(*grebev1.RecommendResponse) != nil {
		t.Errorf("of no answer: %v", r)
	}
	score := &serve.Asked{Message: &grebev1.ScoreRequest{}}
	if r := explained(score, &grebev1.ScoreResponse{}, p, "user"); r == nil {
		t.Error("an answer that cannot be explained is lost")
	}
}

// Nodes tell which rows they have cached, and a request goes where those are that it reads.
func TestRequestsFollowCachedRows(t *testing.T) {
	t.Parallel()
	for _, policy := range []route.Policy{route.Predicted, route.Joint, route.EMBOnly} {
		s := coordtest.NewServer()
		t.Cleanup(s.Close)
		var nodes []*testNode
		for _, self := range []*local{
			{name: "n1", rows: tableWith(t, 7).Shards()}, {name: "n2", rows: tableWith(t, 1, 2, 3).Shards()},
			{name: "n3", rows: tableWith(t, 4, 5, 6).Shards()},
		} {
			nodes = append(nodes, joinAs(t, s, self, func(c *Config) { c.Routing = policy }, func(*Cluster) {}))
		}
		for _, n := range nodes {
			n.waitKnown(t, 3)
		}
		for _, want := range []struct {
			node   string
			shards []uint32
		}{{"n2", []uint32{1, 2, 3, 7}}, {"n3", []uint32{4, 5, 6, 7}}, {"n1", []uint32{7}}} {
			var got *grebev1.RankResponse
			for range 100 { // a node that was not heard for a moment is left out
				var err error
				if got, err = nodes[0].rankRows(t.Context(), want.shards); err != nil {
					t.Fatal(err)
				}
				if got.Node == want.node && got.Route.Reason == "rows" {
					break
				}
				time.Sleep(20 * time.Millisecond)
			}
			if got.Node != want.node || got.Route.Reason != "rows" {
				t.Errorf("%v: rows of shards %v are read at %s because of %q, want %s", policy, want.shards, got.Node,
					got.Route.Reason, want.node)
			}
		}
		if m := nodes[0].Status().Nodes[1].Models[0]; m.Shards != 3 || m.RowMs < 1./256 {
			t.Errorf("n2 holds %d shards, and a row takes %v ms", m.Shards, m.RowMs)
		}
	}
}
