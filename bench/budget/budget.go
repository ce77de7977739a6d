// Package budget measures how the models of a server compete for one amount of host memory.
//
// Shares: three models fill a budget that is smaller than what the users of one of them need. One stays busy, a second
// one wakes up, and the first falls idle. The metric grebe_pool_limit_bytes shows what each may own.
//
// Folder: two configurations on one folder are compared with one configuration, and with two on copies of the folder.
package budget

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"grebe/bench/drive"
	"grebe/bench/report"
	"grebe/shop/demo"
)

// Options are those of Run. Zero values mean the default.
type Options struct {
	Program string        // the path of grebe; required
	Parts   []string      // shares, folder; both
	Memory  int64         // the budget in bytes; 48 MiB
	Users   int           // of each model; 60
	Rate    float64       // requests per second of a busy model; 16
	Phase   time.Duration // of each phase; 1 min
	JSON    bool
}

func (o *Options) setDefaults() {
	if o.Memory == 0 {
		o.Memory = 48 << 20
	}
	if o.Users == 0 {
		o.Users = 60
	}
	if o.Rate == 0 {
		o.Rate = 16
	}
	if o.Phase == 0 {
		o.Phase = time.Minute
	}
	if len(o.Parts) == 0 {
		o.Parts = []string{"shares", "folder"}
	}
}

// Report is what Run found.
type Report struct {
	Shares *Shares `json:"shares,omitempty"`
	Folder *Folder `json:"folder,omitempty"`
	Passed bool    `json:"passed"`
}

// Run measures, and writes a report.
func Run(ctx context.Context, o Options, w io.Writer) (*Report, error) {
	o.setDefaults()
	dir, err := os.MkdirTemp("", "grebe-bench-budget-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	s := &site{o: &o, dir: dir}
	if err := s.write(); err != nil {
		return nil, fmt.Errorf("bench budget: %w", err)
	}
	r := &Report{Passed: true}
	for _, part := range o.Parts {
		switch part {
		case "shares":
			if r.Shares, err = s.shares(ctx); err == nil {
				r.Passed = r.Passed && r.Shares.passed()
			}
		case "folder":
			if r.Folder, err = s.folder(ctx); err == nil {
				r.Passed = r.Passed && r.Folder.passed()
			}
		default:
			err = fmt.Errorf("no part %q: shares, folder", part)
		}
		if err != nil {
			return nil, fmt.Errorf("bench budget: %w", err)
		}
	}
	if o.JSON {
		return r, report.JSON(w, r)
	}
	return r, r.write(w)
}

// names are the models, each of which has a folder of its own name.
var names = []string{"one", "two", "three"}

// site is a folder with the demo's language model, once for each model, and users.
type site struct {
	o       *Options
	dir     string
	servers int
}

func (s *site) write() error {
	shop := filepath.Join(s.dir, "shop")
	if err := demo.Ensure(shop); err != nil {
		return err
	}
	for _, name := range names {
		if err := os.CopyFS(filepath.Join(s.dir, name), os.DirFS(filepath.Join(shop, "lm"))); err != nil {
			return err
		}
	}
	var users bytes.Buffer
	for u := range s.o.Users {
		line, err := json.Marshal(map[string]string{"id": userID(u), "text": history(u)})
		if err != nil {
			return err
		}
		users.Write(append(line, '\n'))
	}
	return os.WriteFile(filepath.Join(s.dir, "users.ndjson"), users.Bytes(), 0o600)
}

func userID(u int) string { return fmt.Sprint("user-", u) }

// history describes a user in about 560 tokens.
func history(u int) string {
	words := strings.Fields("tent stove lamp chair book kettle rope paint brush flour seeds gloves jacket boots bottle " +
		"map")
	r := rand.New(rand.NewPCG(31, uint64(u)))
	var b strings.Builder
	fmt.Fprintf(&b, "Customer %d.\n", u)
	for range 30 {
		fmt.Fprintf(&b, "%d July 2026, bought \"%s and %s\"\n", 1+r.IntN(30), words[r.IntN(len(words))],
			words[r.IntN(len(words))])
	}
	return b.String()
}

// start starts a server on models of these names, each with the checkpoint of a folder.
func (s *site) start(ctx context.Context, models map[string]string) (*drive.Server, error) {
	s.servers++
	var b strings.Builder
	fmt.Fprintf(&b, "device: cpu\nslo_ms: 5000\ndata_dir: data%d\nmodels:\n", s.servers)
	for _, name := range names {
		if folder, ok := models[name]; ok {
			fmt.Fprintf(&b, "  - name: %s\n    path: ./%s\n", name, folder)
			fmt.Fprintf(&b, "    prompt: {user: \"{text}\", item: \"<{id}> {text}\\n\", instruction: \"The customer takes:\"}\n")
			fmt.Fprintf(&b, "    scoring: {kind: identifier}\n    prefix: {orders: [user]}\n")
		}
	}
	fmt.Fprintf(&b, "cache: {host_memory: %d, ahead: \"off\"}\n", s.o.Memory)
	fmt.Fprintf(&b, "catalog: {items: shop/items.ndjson, users: users.ndjson}\n")
	file := filepath.Join(s.dir, fmt.Sprintf("grebe%d.yaml", s.servers))
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		return nil, err
	}
	return drive.Start(ctx, s.o.Program, file, nil)
}

// usage is what an answer says about its tokens.
type usage struct {
	Prompt int `json:"prompt_tokens"`
	Cached int `json:"cached_tokens"`
}

func (u *usage) add(o usage) { u.Prompt, u.Cached = u.Prompt+o.Prompt, u.Cached+o.Cached }

// reused is the share of the tokens that were cached.
func (u *usage) reused() float64 { return float64(u.Cached) / float64(max(u.Prompt, 1)) }

// rank has a model rank two items for a user.
func rank(ctx context.Context, client *http.Client, base, model string, user int) (usage, error) {
	body, err := json.Marshal(map[string]any{
		"model": model, "prefix": "user", "top_k": 1, "deadline_ms": 60_000, "user": map[string]string{"id": userID(user)},
		"candidates": []map[string]string{{"id": "i00001"}, {"id": "i00002"}},
	})
	if err != nil {
		return usage{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/rank", bytes.NewReader(body))
	if err != nil {
		return usage{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return usage{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return usage{}, err
	}
	if resp.StatusCode != http.StatusOK {
		return usage{}, fmt.Errorf("rank: %s: %.200s", resp.Status, text)
	}
	var answer struct {
		Usage usage `json:"usage"`
	}
	return answer.Usage, json.Unmarshal(text, &answer)
}
