package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"grebe/app/backup"
	"grebe/internal/cli"
	"grebe/shop/demo"
)

// backedUp makes a backup that must succeed, and returns how long it took.
func backedUp(t *testing.T, dir, server string) time.Duration {
	t.Helper()
	begun := time.Now()
	if out, errs, code := grebe(t, "backup", dir, "--server", server); code != cli.Done {
		t.Fatalf("grebe backup exits with %d and says %s%s", code, out, errs)
	}
	return time.Since(begun)
}

func restored(t *testing.T, dir, data string, flags ...string) time.Duration {
	t.Helper()
	begun := time.Now()
	if out, errs, code := grebe(t, append([]string{"restore", dir, "--data-dir", data}, flags...)...); code != cli.Done {
		t.Fatalf("grebe restore exits with %d and says %s%s", code, out, errs)
	}
	return time.Since(begun)
}

// answers are what a server says of its catalog, and its rankings and recommendations in a fixed order of the prompt.
func answers(t *testing.T, call func(method, path, body string) []byte) string {
	t.Helper()
	var out strings.Builder
	var c struct {
		Items, Users json.RawMessage
		Version      string
		Digest       string
		Models       []struct {
			Version string
			Pinned  bool
		}
		Versions []struct{ Version, Digest string }
	}
	if err := json.Unmarshal(call("GET", "/v1/catalog", ""), &c); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&out, "%+v\n", c)
	for _, user := range []string{"ana", "w0"} {
		for _, q := range [][2]string{
			{"/v1/rank", `{"user":{"id":%q},"prefix":"user","candidates":[{"id":"w0"},{"id":"w1"},{"id":"w2"}]}`},
			{"/v1/recommend", `{"user":{"id":%q},"n":20}`},
		} {
			path, body := q[0], q[1]
			var a struct {
				Results json.RawMessage
				Version string `json:"catalog_version"`
			}
			data := call("POST", path, fmt.Sprintf(body, user))
			if err := json.Unmarshal(data, &a); err != nil {
				t.Fatalf("%s for %s: %q, %v", path, user, data, err)
			}
			out.WriteString(path + user + a.Version + string(a.Results) + "\n")
		}
	}
	return out.String()
}

// fillShop puts items and a user, of whom the first three can be ranked.
func fillShop(t *testing.T, call func(method, path, body string) []byte, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		body := fmt.Sprintf(`{"text":"thing %d","identifier":%d,"codes":[%d,%d,%d]}`, i, i, i%8, i/8%4, i/32%4)
		if call("PUT", fmt.Sprint("/v1/items/w", i), body) == nil {
			t.Fatalf("item w%d is refused", i)
		}
	}
	if call("PUT", "/v1/users/w0", `{"history":["w0","w1"]}`) == nil {
		t.Fatal("a user is refused")
	}
	generated(t, call)
}

// generated waits until the model generates all items of the catalog.
func generated(t *testing.T, call func(method, path, body string) []byte) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var c struct {
			Items  int
			Models []struct{ Items int }
		}
		data := call("GET", "/v1/catalog", "")
		if json.Unmarshal(data, &c) == nil && len(c.Models) == 1 && c.Models[0].Items == c.Items {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the model does not generate all items: %s", data)
		}
	}
}

// A backup under load fails no request and has every write that was acknowledged before it. The restored server answers
// like the original, with the same versions and the same one activated.
func TestBackupUnderLoad(t *testing.T) {
	config, dir := filepath.Join(demoData, demo.ConfigFile), t.TempDir()
	s := startServer(t, config, "--data-dir", filepath.Join(dir, "data"), "--slo-ms", "60000")
	defer s.kill()
	fillShop(t, s.call, 0, 30)
	fillShop(t, s.call, 30, 40) // a version of its own, for the rollback
	var now struct{ Users int64 }
	if err := json.Unmarshal(s.call("GET", "/v1/catalog", ""), &now); err != nil {
		t.Fatal(err)
	}
	others := now.Users
	var acknowledged, asked, failed atomic.Int64
	stop, done := make(chan struct{}), make(chan struct{}, 2)
	load := func(next func() bool) {
		defer func() { done <- struct{}{} }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			if asked.Add(1); !next() {
				failed.Add(1)
			}
		}
	}
	go load(func() bool {
		n := acknowledged.Load()
		ok := s.call("PUT", fmt.Sprint("/v1/users/load", n), `{"history":["w1"]}`) != nil
		if ok {
			acknowledged.Add(1)
		}
		return ok
	})
	go load(func() bool { return s.call("POST", "/v1/recommend", `{"user":{"id":"w0"},"n":5}`) != nil })
	type one struct {
		dir           string
		before, after int64
	}
	var all []one
	for i := range 3 {
		b := one{dir: filepath.Join(dir, fmt.Sprint("backup", i)), before: acknowledged.Load()}
		backedUp(t, b.dir, s.url)
		b.after = acknowledged.Load() + 1
		all = append(all, b)
	}
	close(stop)
	<-done
	<-done
	if failed.Load() > 0 {
		t.Errorf("%d of %d requests failed", failed.Load(), asked.Load())
	}
	for _, b := range all {
		m, err := backup.Verify(b.dir)
		if err != nil {
			t.Fatal(err)
		}
		if n := int64(m.Users) - others; n < b.before || n > b.after {
			t.Errorf("a backup has %d users of the load: it began when there were %d and ended with %d", n, b.before, b.after)
		}
	}
	if s.call("POST", "/v1/catalog:rollback", `{}`) == nil {
		t.Fatal("no rollback")
	}
	want := answers(t, s.call)
	last := filepath.Join(dir, "last")
	backedUp(t, last, s.url)
	s.kill()
	restored(t, last, filepath.Join(dir, "restored"))
	again := startServer(t, config, "--data-dir", filepath.Join(dir, "restored"), "--slo-ms", "60000")
	defer again.kill()
	if got := answers(t, again.call); got != want {
		t.Errorf("the restored server answers\n%s\nwant\n%s", got, want)
	}
	t.Logf("%d requests beside 3 backups", asked.Load())
}

// killedAfter runs the binary and kills it after a time, if it still runs.
func killedAfter(t *testing.T, d time.Duration, args ...string) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(d, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	_ = cmd.Wait()
}

// A backup and a restore that are killed at any moment are recognised as incomplete, and the next ones succeed.
func TestKilledBackup(t *testing.T) {
	config, dir := filepath.Join(demoData, demo.ConfigFile), t.TempDir()
	s := startServer(t, config, "--data-dir", filepath.Join(dir, "data"), "--slo-ms", "60000")
	defer s.kill()
	fillShop(t, s.call, 0, 40)
	want := answers(t, s.call)
	whole := filepath.Join(dir, "whole")
	took, data := backedUp(t, whole, s.url), filepath.Join(dir, "restored")
	takes := restored(t, whole, data)
	r := rand.New(rand.NewPCG(6, 6))
	interrupted := 0
	for i := range kills(t) {
		name := filepath.Join(dir, fmt.Sprint("backup", i))
		killedAfter(t, time.Duration(r.Int64N(int64(took))), "backup", name, "--server", s.url)
		if _, err := os.Stat(name); err != nil {
			interrupted++
			if _, err := backup.Verify(name + backup.PartSuffix); err == nil {
				t.Errorf("what a killed backup left can be restored")
			}
			backedUp(t, name, s.url)
		}
		killedAfter(t, time.Duration(r.Int64N(int64(takes))), "restore", name, "--data-dir", data, "--force")
		restored(t, name, data, "--force")
	}
	t.Logf("%d backups were interrupted", interrupted)
	again := startServer(t, config, "--data-dir", data, "--slo-ms", "60000")
	defer again.kill()
	if got := answers(t, again.call); got != want {
		t.Errorf("the restored server answers\n%s\nwant\n%s", got, want)
	}
	again.kill()
	if err := os.WriteFile(filepath.Join(data, "restoring"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs, code := grebe(t, "serve", "-c", config, "--data-dir", data, "--listen", "127.0.0.1:0", "--admin-listen=",
		"--grpc-listen=")
	if code != cli.Failed || !strings.Contains(errs, "grebe restore") {
		t.Errorf("a server starts on a data_dir that is being restored: %d, %s", code, errs)
	}
}

// A backup of a cluster of two nodes is restored onto three. They answer alike, with the same version activated.
func TestTrialBackup(t *testing.T) {
	two := newTrial(t, 2)
	call := func(m *member) func(method, path, body string) []byte {
		return (&crashServer{url: "http://" + m.listen}).call
	}
	for i := range 2 { // the rollback needs a version that both nodes have
		fillShop(t, call(two.nodes[0]), 10*i, 10*i+10)
		generated(t, call(two.nodes[1]))
	}
	if call(two.nodes[0])("POST", "/v1/catalog:rollback", `{}`) == nil {
		t.Fatal("no rollback")
	}
	want := answers(t, call(two.nodes[1]))
	dir := filepath.Join(two.dir, "backup")
	backedUp(t, dir, "http://"+two.nodes[1].admin)
	for _, m := range two.nodes {
		two.end(m, syscall.SIGKILL)
	}
	three := &trial{T: t, dir: t.TempDir()}
	three.addMembers(3)
	for _, m := range three.nodes {
		restored(t, dir, filepath.Join(three.dir, m.id))
	}
	three.startAll()
	for _, m := range three.nodes {
		if got := answers(t, call(m)); got != want {
			t.Errorf("%s answers\n%s\nwant\n%s", m.id, got, want)
		}
	}
}
