package server

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	grebev1 "grebe/api/grebe/v1"
	"grebe/dispatch"
	"grebe/engine"
)

// dial connects to a gRPC server; an address "passthrough:x" with a dialer of its own will do too.
func dial(t *testing.T, target string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(target, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// overPipe serves gRPC alone on a connection in memory.
func overPipe(t *testing.T, w *world) *grpc.ClientConn {
	t.Helper()
	ln := bufconn.Listen(1 << 16)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Serve(ctx, Listeners{GRPC: ln}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return dial(t, "passthrough:grebe", grpc.WithContextDialer(
		func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }))
}

var rankRequest = &grebev1.RankRequest{
	Model: "id", User: &grebev1.User{Id: "u1"}, RequestId: "r",
	Candidates: []*grebev1.Item{{Id: "i1"}, {Id: "i2"}, {Tokens: []int32{4}, Identifier: proto.Int32(20)}},
}

func checkGRPCRank(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	got, err := grebev1.NewGrebeClient(conn).Rank(context.Background(), rankRequest)
	if err != nil {
		t.Fatal(err)
	}
	all := slices.Concat(preamble, text("anvil|crate"), text("anvilbolt"), []int32{4}, instruction)
	for _, r := range got.Results {
		if id := []int32{310, 311, 20}[r.Index]; r.Logit != logit(id, all) {
			t.Errorf("result %v, want logit %v", r, logit(id, all))
		}
	}
	if len(got.Results) != 3 || got.RequestId != "r" || got.Node != "n0" || got.Prefix != "user" ||
		got.Usage.PromptTokens != int32(len(all)) {
		t.Errorf("%v", got)
	}
}

func TestGRPC(t *testing.T) {
	w := newWorld(t)
	conn := overPipe(t, w)
	checkGRPCRank(t, conn)
	c := grebev1.NewGrebeClient(conn)
	ctx := context.Background()
	score, err := c.Score(ctx, &grebev1.ScoreRequest{Model: "id", Query: &grebev1.Input{Tokens: []int32{1}},
		Items: []*grebev1.Input{{Text: proto.String("a")}}, LabelTokenIds: []int32{9, 8}, ApplySoftmax: true})
	if err != nil || len(score.Scores) != 1 {
		t.Fatalf("%v, %v", score, err)
	}
	checkScores(t, score.Scores[0].Values, []int32{9, 8}, slices.Concat(preamble, []int32{1}, text("a"), instruction),
		true)
	rerank, err := c.Rerank(ctx, &grebev1.RerankRequest{Model: "pw", Query: "q", Documents: []string{"a", "b"}})
	if err != nil || len(rerank.Results) != 2 || rerank.Results[0].RelevanceScore < rerank.Results[1].RelevanceScore {
		t.Errorf("%v, %v", rerank, err)
	}
	models, err := c.ListModels(ctx, &grebev1.ListModelsRequest{})
	if err != nil || len(models.Data) != 3 || models.Data[0].Id != "id" {
		t.Errorf("%v, %v", models, err)
	}
	h := grpc_health_v1.NewHealthClient(conn)
	for _, name := range []string{"", "grebe.v1.Grebe"} {
		got, err := h.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: name})
		if err != nil || got.Status != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v, %v", name, got, err)
		}
	}
	if m := w.ask("GET", "/metrics", "").Body.String(); !strings.Contains(m,
		`grebe_requests_total{code="200",op="rerank"} 1`) {
		t.Error("gRPC requests are not counted")
	}
}

func TestGRPCErrors(t *testing.T) {
	w := newWorld(t)
	conn := overPipe(t, w)
	c := grebev1.NewGrebeClient(conn)
	for _, tc := range []struct {
		change func(*grebev1.RankRequest)
		code   codes.Code
		text   string
	}{
		{func(r *grebev1.RankRequest) { r.Candidates[1].Id = "i999" }, codes.InvalidArgument,
			`candidates[1].id: no item "i999"`},
		{func(r *grebev1.RankRequest) { r.Candidates = nil }, codes.InvalidArgument, "candidates: "},
		{func(r *grebev1.RankRequest) { r.Candidates = make([]*grebev1.Item, 10001) }, codes.InvalidArgument, "candidates: "},
		{func(r *grebev1.RankRequest) { r.Candidates[1] = nil }, codes.InvalidArgument, "candidates[1]: "},
		{func(r *grebev1.RankRequest) { r.User = nil }, codes.InvalidArgument, "user: "},
		{func(r *grebev1.RankRequest) { r.TopK = -1 }, codes.InvalidArgument, "top_k: "},
		{func(r *grebev1.RankRequest) { r.DeadlineMs = -1 }, codes.InvalidArgument, "deadline_ms: "},
		{func(r *grebev1.RankRequest) { r.Candidates[2].Tokens[0] = -7 }, codes.InvalidArgument, "candidates[2].tokens[0]: "},
		{func(r *grebev1.RankRequest) { r.Candidates[2].Identifier = proto.Int32(310) }, codes.FailedPrecondition,
			"candidates[2].identifier: "},
		{func(r *grebev1.RankRequest) { r.Candidates[2].Identifier = proto.Int32(-3) }, codes.FailedPrecondition,
			"candidates[2].identifier: "},
		{func(r *grebev1.RankRequest) { r.Model = "x" }, codes.NotFound, "model: "},
		{func(r *grebev1.RankRequest) { r.User = &grebev1.User{Tokens: make([]int32, positions)} }, codes.OutOfRange,
			"positions"},
		{func(r *grebev1.RankRequest) { r.RequestId = "\x00" }, codes.InvalidArgument, "request_id: "},
	} {
		req := proto.Clone(rankRequest).(*grebev1.RankRequest)
		tc.change(req)
		_, err := c.Rank(context.Background(), req)
		if s := status.Convert(err); s.Code() != tc.code || !strings.Contains(s.Message(), tc.text) {
			t.Errorf("error %v, want %v with %q", err, tc.code, tc.text)
		}
	}
	if _, err := c.Score(context.Background(), &grebev1.ScoreRequest{Model: "id", Query: &grebev1.Input{},
		Items: []*grebev1.Input{nil}, LabelTokenIds: []int32{-1}}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("negative label: %v", err)
	}
	for err, code := range map[error]codes.Code{
		dispatch.ErrQueueFull: codes.ResourceExhausted, dispatch.ErrExpired: codes.DeadlineExceeded,
		engine.ErrClosed: codes.Unavailable,
	} {
		w.runner.Set(func(context.Context, *engine.Job) error { return err })
		if _, got := c.Rank(context.Background(), rankRequest); status.Code(got) != code {
			t.Errorf("%v: %v, want %v", err, got, code)
		}
	}
	w.runner.Set(func(context.Context, *engine.Job) error { panic("boom") })
	if _, err := c.Rank(context.Background(), rankRequest); status.Code(err) != codes.Internal {
		t.Errorf("panic: %v", err)
	}
	w.runner.Set(nil)
	checkGRPCRank(t, conn)
	w.SetReady(false)
	if _, err := c.Rank(context.Background(), rankRequest); status.Code(err) != codes.Unavailable {
		t.Errorf("not ready: %v", err)
	}
	got, err := grpc_health_v1.NewHealthClient(conn).Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil || got.Status != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health: %v, %v", got, err)
	}
}

// One port serves both HTTP and gRPC.
func TestGRPCOnTheHTTPPort(t *testing.T) {
	s := listening(t, newWorld(t))
	checkGRPCRank(t, dial(t, s.http.Addr().String()))
	checkGRPCRank(t, dial(t, s.grpc.Addr().String()))
	resp, err := client(t).Get(s.url("/v2/health/ready"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("HTTP beside gRPC: %d", resp.StatusCode)
	}
}

func TestGRPCBoundsMemory(t *testing.T) {
	c := grebev1.NewGrebeClient(overPipe(t, newWorld(t)))
	empty := make([]*grebev1.Item, maxMessages+1)
	for i := range empty {
		empty[i] = &grebev1.Item{}
	}
	req := &grebev1.RankRequest{Candidates: empty}
	if _, err := c.Rank(context.Background(), req); err == nil || !strings.Contains(err.Error(), "too many parts") {
		t.Errorf("%d empty candidates: %v", len(empty), err)
	}
	events := make([]*grebev1.Event, maxMessages)
	for i := range events {
		events[i] = &grebev1.Event{}
	}
	req = &grebev1.RankRequest{User: &grebev1.User{Events: events}}
	if _, err := c.Rank(context.Background(), req); err == nil || !strings.Contains(err.Error(), "too many parts") {
		t.Errorf("%d empty events: %v", len(events), err)
	}
}

// Over gRPC too, calls that wait for the catalog take no slots of rankings, and rankings take none of theirs.
func TestGRPCPlaces(t *testing.T) {
	w := newWorld(t, func(c *setup) { c.MaxInFlight = 1 })
	conn := overPipe(t, w)
	look := func() codes.Code {
		_, err := grebev1.NewGrebeClient(conn).GetCatalog(t.Context(), &grebev1.GetCatalogRequest{})
		return status.Code(err)
	}
	free := look()         // the usual code
	w.writes <- struct{}{} // a write that waits
	checkGRPCRank(t, conn)
	if code := look(); code != codes.ResourceExhausted {
		t.Errorf("a second call that waits for the catalog: %v", code)
	}
	<-w.writes
	w.slots <- struct{}{} // a ranking
	if code := look(); code != free || code == codes.ResourceExhausted {
		t.Errorf("the catalog beside a ranking: %v, otherwise %v", code, free)
	}
	<-w.slots
}
