package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"grebe/shop/demo"
)

// ownFolder gives a node a folder of its own with two checkpoints. The link current is what its configuration names.
func ownFolder(t *testing.T, dir string) {
	t.Helper()
	shell := exec.Command("bash", "-euc", `cp -r "$0" "$1"; cd "$1"; cp -r checkpoint second
sed -i -E 's/"rope_theta": ?10000(\.0)?/"rope_theta":9900.0/' second/config.json
! cmp -s checkpoint/config.json second/config.json
ln -s checkpoint current; sed -i 's|path: ./checkpoint|path: ./current|' grebe.yaml`, demoData, dir)
	if out, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// use has a node's configuration name another checkpoint.
func (m *member) use(t *testing.T, checkpoint string) {
	t.Helper()
	link := filepath.Join(filepath.Dir(m.config), "current")
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(checkpoint, link); err != nil {
		t.Fatal(err)
	}
}

// versions returns what a member says that the nodes serve.
func (m *member) versions(t *testing.T) (out []string) {
	t.Helper()
	s, err := m.status()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range s.Nodes {
		out = append(out, n.Models[0].Version)
	}
	return out
}

// A new checkpoint goes through a cluster under load, comes back, and is stopped by a node that has other files. Every
// answer is that of one checkpoint or of the other: they never share KV.
func TestTrialReload(t *testing.T) {
	c := prepareTrial(t, 4, "reload.trial_ms=300")
	c.nodes[3].set = []string{"cluster.roles=[kv]"}
	for _, m := range c.nodes {
		dir := filepath.Join(c.dir, m.id+"-shop")
		ownFolder(t, dir)
		m.config = filepath.Join(dir, demo.ConfigFile)
	}
	c.startAll()
	ownFolder(t, filepath.Join(c.dir, "new"))
	(&member{config: filepath.Join(c.dir, "new", demo.ConfigFile)}).use(t, "second")
	pool := questions(t, long(100, 20), 10)
	other := singleOf(t, filepath.Join(c.dir, "new", demo.ConfigFile))
	next := make([][]byte, len(pool))
	for i, q := range pool {
		r, err := q.ask(other)
		if err != nil {
			t.Fatal(err)
		}
		next[i] = r.Results
	}

	stop, asked, byNew := make(chan struct{}), 0, 0
	var load sync.WaitGroup
	end := sync.OnceFunc(func() { close(stop); load.Wait() })
	defer end()
	load.Go(func() {
		for r := rand.New(rand.NewPCG(10, 1)); ; {
			select {
			case <-stop:
				return
			default:
			}
			i := r.IntN(len(pool))
			got, err := pool[i].ask(c.nodes[r.IntN(3)].listen)
			asked++
			if err != nil {
				t.Error(err)
				return
			}
			if bytes.Equal(got.Results, next[i]) {
				byNew++
			} else if !bytes.Equal(got.Results, pool[i].want) {
				t.Errorf("request %d is answered by neither checkpoint: %s", asked, got.Results)
				return
			}
		}
	})

	post := func(m *member, verb string) (string, error) {
		data, err := fetchWithin(2*time.Minute, http.MethodPost, "http://"+m.admin+"/v1/models/demo:"+verb,
			strings.NewReader(`{"wait": true}`))
		return string(data), err
	}
	before := c.nodes[0].versions(t)[0]
	same := func(what, want string, not bool) {
		t.Helper()
		for _, m := range c.nodes {
			c.until(10*time.Second, func() string {
				v := m.versions(t)
				if v[0] != v[1] || v[1] != v[2] || v[2] != v[3] || (v[0] == want) == not {
					return fmt.Sprintf("%s: %s sees versions %v, not equal: %t, want %s", what, m.id, v, not, want)
				}
				return ""
			})
		}
	}
	for _, m := range c.nodes { // n3 has not got the files
		if m != c.nodes[2] {
			m.use(t, "second")
		}
	}
	if _, err := post(c.nodes[0], "reload"); err == nil ||
		!strings.Contains(err.Error(), "n3: its configuration names version") {
		t.Errorf("a reload while n3 has other files: %v", err)
	}
	same("rolled back", before, false)
	c.nodes[2].use(t, "second")
	if _, err := post(c.nodes[1], "reload"); err != nil {
		t.Error(err)
	}
	same("reloaded", before, true)
	if _, err := post(c.nodes[2], "rollback"); err != nil {
		t.Error(err)
	}
	same("rolled back again", before, false)
	end()
	c.running()
	t.Logf("a reload that fails, one that works and a rollback of 3 nodes and a kv member, %d requests meanwhile: none "+
		"failed, %d answered by the new checkpoint, none by a mixture",
		asked, byNew)
	if byNew == 0 {
		t.Error("the new checkpoint has answered nothing")
	}
}
