package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"grebe/cluster/status"
	"grebe/serve"
	"grebe/serve/servetest"
	"grebe/server"
)

// staged is a fleet whose nodes change as a test says.
type staged struct {
	mu  sync.Mutex
	now status.Cluster
}

func (f *staged) Status() *status.Cluster {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.now
	for i := range f.now.Nodes { // requests go on
		if f.now.Nodes[i].State == "ACTIVE" {
			f.now.Nodes[i].Routed += int64(10 + 3*i)
		}
	}
	c.Nodes, c.Changes = slices.Clone(c.Nodes), slices.Clone(c.Changes)
	return &c
}

func (f *staged) Drain(context.Context, string, bool) error { return nil }

func (f *staged) Leave() {}

// set changes a node's state, and lists the change.
func (f *staged) set(node, state string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.now.Nodes, func(n status.Node) bool { return n.ID == node })
	at := time.Now().UTC().Format("2006-01-02T15:04:05.000Z07:00")
	f.now.Changes = slices.Insert(f.now.Changes, 0, status.Change{
		At: at, Node: node, From: f.now.Nodes[i].State, To: state})
	if state == "GONE" {
		f.now.Nodes = slices.Delete(f.now.Nodes, i, i+1)
		p := *f.now.Placement
		p.Nodes = slices.Clone(p.Nodes)
		for i := range p.Nodes {
			p.Nodes[i].Gone = p.Nodes[i].Gone || p.Nodes[i].ID == node
		}
		f.now.Placement = &p
		return
	}
	f.now.Nodes[i].State = state
}

// lose takes the coordinator away.
func (f *staged) lose() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now.Coordinator = "away"
}

// pageOf serves the dashboard of a fleet.
func pageOf(t *testing.T, f server.Fleet) (url string) {
	t.Helper()
	return servePage(t, server.Config{Fleet: f})
}

// servePage serves a dashboard with a small catalog and a model that computes nothing.
func servePage(t *testing.T, cfg server.Config) (url string) {
	t.Helper()
	service, err := serve.New(serve.Config{Catalog: servetest.NewCatalog(t), SLO: time.Second, Models: []serve.Model{
		{Name: "shop", Runner: &servetest.Runner{}, Prompt: servetest.NewBuilder(t, servetest.Tokenizer{}),
			Vocab: servetest.Vocab},
	}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(service, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, server.Listeners{HTTP: ln}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	s.SetReady(true)
	return "http://" + ln.Addr().String()
}

// A person looks at the Fleet page while a node dies: the page shows each state within seconds, in light and dark, on a
// phone, and with ids that try to be markup.
func TestFleetPage(t *testing.T) {
	f := &staged{now: *threeNodes()}
	f.now.Changes = nil
	for i := range f.now.Nodes {
		f.now.Nodes[i].State = "ACTIVE"
		f.now.Nodes[i].Models[0].Known = true
	}
	f.now.Nodes[2].ID, f.now.Nodes[2].Zone = "n3<b>", "z1"
	f.now.Placement.Nodes = append(f.now.Placement.Nodes, status.Held{ID: "n2", Items: 3180, Bytes: 5e6})
	f.now.Transfers = append(f.now.Transfers, status.Transfer{From: "n1", To: "n2", Blocks: 9, Bytes: 3e8, RateMB: 20})
	url := pageOf(t, f)
	ctx, complaints := browser(t, url)
	scheme := func(s string) chromedp.Action {
		return emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: s}})
	}
	patient := chromedp.WithPollingTimeout(0) // until the browser's context ends
	state := func(node, want string) chromedp.Action {
		return chromedp.Poll(fmt.Sprintf(`[...document.querySelectorAll("#fleet .node")].some(
			n => n.querySelector("b").textContent === %q && n.querySelector(".state").textContent.startsWith(%q))`, node, want),
			nil, patient)
	}
	change := func(node, to string) chromedp.Action {
		return chromedp.ActionFunc(func(context.Context) error { f.set(node, to); return nil })
	}
	var text, away, cut string
	var wide bool
	err := chromedp.Run(ctx,
		chromedp.EmulateViewport(1280, 900), scheme("light"), chromedp.Navigate(url+"/#fleet"),
		state("n1", "ACTIVE"), state("n3<b>", "ACTIVE · drained"),
		chromedp.Poll(`document.querySelectorAll("#fleet-charts path.area").length >= 3`, nil, patient),
		change("n2", "LEASE_LOST"), state("n2", "LEASE_LOST"),
		change("n2", "SUSPECT"), state("n2", "SUSPECT"), shoot("fleet-suspect.png"),
		change("n2", "GONE"), state("n2", "GONE"),
		chromedp.Text("#fleet", &text),
		chromedp.ActionFunc(func(context.Context) error { f.lose(); return nil }),
		chromedp.WaitVisible("#fleet-problem"), chromedp.Text("#fleet-problem", &away),
		chromedp.Evaluate(`[...document.querySelectorAll("#fleet .scroll, #fleet .node")]
			.filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent).join()`, &cut),
		scheme("dark"), shoot("fleet-gone-dark.png"),
		chromedp.EmulateViewport(390, 800), chromedp.Sleep(100*time.Millisecond),
		chromedp.Evaluate(`document.documentElement.scrollWidth > document.documentElement.clientWidth`, &wide),
		shoot("fleet-phone.png"),
	)
	if err != nil {
		t.Fatalf("%v; %v", err, complaints())
	}
	for _, want := range []string{"Cluster demo: 2 of 2 nodes active", "ACTIVE → LEASE_LOST", "LEASE_LOST → SUSPECT",
		"SUSPECT → GONE",
		"left at", "42 ms ago", "n3<b>", "hrcs, epoch 4", "2.00 GB", "n2 (gone)",
		"a node that is gone keeps its share for some 30 s"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %q", want, text)
		}
	}
	if !strings.Contains(away, "coordinator does not answer") {
		t.Errorf("without a coordinator the page says %q", away)
	}
	if cut != "" || wide {
		t.Errorf("parts without room: %q; wider than a phone: %v", cut, wide)
	}
	if c := complaints(); len(c) > 0 {
		t.Errorf("the browser complains:\n%s", strings.Join(c, "\n"))
	}
}

// Without a cluster there is no such page, and nothing asks for one.
func TestNoFleetPage(t *testing.T) {
	url := pageOf(t, nil)
	ctx, complaints := browser(t, url)
	var tabs int
	err := chromedp.Run(ctx, chromedp.Navigate(url+"/#fleet"),
		chromedp.Poll(`document.querySelector("#state").textContent === "ready"`, nil, chromedp.WithPollingTimeout(0)),
		chromedp.Evaluate(`document.querySelectorAll("[role=tab]").length`, &tabs))
	if err != nil || tabs != 3 {
		t.Errorf("%d tabs, %v", tabs, err)
	}
	if c := complaints(); len(c) > 0 {
		t.Errorf("the browser complains:\n%s", strings.Join(c, "\n"))
	}
}
