package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"grebe/catalog"
	"grebe/embed/redisserver"
	"grebe/internal/cli"
	"grebe/internal/datadir"
	"grebe/shop/demo"
)

// held describes all that a folder's catalog has: items by their digest, and each user with events.
func held(t *testing.T, dir string) (items, events int, digest string) {
	t.Helper()
	c, err := catalog.Open(datadir.Catalog(dir), catalog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	h := sha256.New()
	s := c.Stats()
	fmt.Fprintln(h, s.Items, s.Users, s.Digest)
	for u := range s.Users {
		user, ok := c.User(fmt.Sprint("u", u))
		if !ok {
			t.Fatalf("there is no user u%d of %d", u, s.Users)
		}
		events += len(user.Events)
		for _, e := range user.Events {
			fmt.Fprintln(h, user.Id, e.Item, e.Time, e.Action)
		}
	}
	return s.Items, events, fmt.Sprintf("%x", h.Sum(nil))
}

// bytesIn returns the size of all files of a folder.
func bytesIn(dir string) (sum int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error { // files come and go meanwhile
		if err != nil || d.IsDir() {
			return nil
		}
		if info, err := d.Info(); err == nil {
			sum += info.Size()
		}
		return nil
	})
	return sum
}

// killedAt runs the binary and kills it when a folder has grown to a size, unless it ends before.
func killedAt(t *testing.T, dir string, size int64, args ...string) {
	t.Helper()
	killedOnce(t, func() bool { return bytesIn(dir) >= size }, args...)
}

// killedOnce runs the binary and kills it once a condition is met, unless it ends before.
func killedOnce(t *testing.T, met func() bool, args ...string) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	for !met() {
		select {
		case <-ended:
			return
		case <-time.After(time.Millisecond):
		}
	}
	_ = cmd.Process.Kill()
	<-ended
}

var goingOn = regexp.MustCompile(`Continuing at line (\d+)`)

// An import that is killed at random moments and run again leaves the catalog of one that is left alone. What was
// durable stays, and the import goes on behind records that are.
func TestKilledImport(t *testing.T) {
	const items, events, users = 20_000, 20_000, 100
	products, clicks := []string{"sku,title,price"}, []string{"uid,sku,at"}
	for i := range items {
		products = append(products, fmt.Sprintf("p%d,A product with number %d,%d.50", i, i, i%900))
	}
	for i := range events {
		clicks = append(clicks, fmt.Sprintf("u%d,p%d,%d", i%users, i%items, 1_700_000_000+i))
	}
	files := [2]string{writeLines(t, "products.csv", products...), writeLines(t, "clicks.csv", clicks...)}
	args := func(kind int, dir string) []string {
		return [][]string{
			{"import", files[0], "--kind", "items", "--map", "id=sku,text=title,attributes.price=price:number",
				"--data-dir", dir},
			{"import", files[1], "--kind", "events", "--map", "user=uid,item=sku,time=at", "--data-dir", dir},
		}[kind]
	}
	dir := t.TempDir()
	alone, killed := filepath.Join(dir, "alone"), filepath.Join(dir, "killed")
	var sizes [2]int64 // of the folder behind each import
	for kind := range sizes {
		if out, errs, code := grebe(t, args(kind, alone)...); code != cli.Done {
			t.Fatalf("exit code %d: %s%s", code, out, errs)
		}
		sizes[kind] = bytesIn(alone)
	}
	_, _, want := held(t, alone)
	r := rand.New(rand.NewPCG(11, 28))
	for kind := range sizes {
		before, middle := 0, 0
		from := bytesIn(killed)
		at := make([]int64, kills(t))
		for i := range at {
			at[i] = from + r.Int64N(max(1, sizes[kind]-from))
		}
		slices.Sort(at)
		for _, size := range at {
			killedAt(t, killed, size, args(kind, killed)...)
			counts := [2]int{}
			counts[0], counts[1], _ = held(t, killed)
			if counts[kind] < before {
				t.Fatalf("after a kill there are %d records, before there were %d", counts[kind], before)
			}
			if before = counts[kind]; before > 0 && before < [2]int{items, events}[kind] {
				middle++
			}
		}
		t.Logf("%d kills were in the middle of the import", middle)
		out, errs, code := grebe(t, args(kind, killed)...)
		if code != cli.Done {
			t.Fatalf("exit code %d: %s%s", code, out, errs)
		}
		if m := goingOn.FindStringSubmatch(errs + out); m != nil {
			if line, err := strconv.Atoi(m[1]); err != nil || line-2 > before { // the first line has the names
				t.Errorf("it goes on at line %d, but only %d records are durable: %v", line, before, err)
			}
		}
	}
	if n, m, got := held(t, killed); got != want {
		t.Errorf("after kills there are %d items and %d events, which differ from those of an import that is left alone", n,
			m)
	}
}

// A stream whose consumer is killed at random moments leaves the events of one that is left alone: none is lost, and
// none is there twice.
func TestKilledStream(t *testing.T) {
	s := startServer(t, filepath.Join(demoData, demo.ConfigFile), "--data-dir", t.TempDir(), "--slo-ms", "60000")
	defer s.kill()
	messages := 3000 * kills(t)
	users := messages / 200
	lines := func(prefix string) (out []string) {
		for i := range messages {
			out = append(out, fmt.Sprintf(`{"user":"%s%d","item":"i%05d","time":%d,"id":"e%d"}`, prefix, i%users, 1+i%500,
				1_700_000_000+i, i))
		}
		return out
	}
	eventsOf := func(user string) []json.RawMessage {
		var u struct{ Events []json.RawMessage }
		answer := s.call(http.MethodGet, "/v1/users/"+user, "")
		if answer == nil {
			return nil // no event came yet
		}
		if err := json.Unmarshal(answer, &u); err != nil {
			t.Fatalf("%s: %v", answer, err)
		}
		return u.Events
	}
	events := func(prefix string) (n int, all string) {
		var out strings.Builder
		for u := range users {
			list := eventsOf(fmt.Sprint(prefix, u))
			n += len(list)
			for _, e := range list {
				fmt.Fprintf(&out, "%d %s\n", u, e)
			}
		}
		return n, out.String()
	}
	s.call(http.MethodPost, "/v1/events:batch", strings.Join(lines("alone"), "\n"))
	n, want := events("alone")
	if n != messages {
		t.Fatalf("the server has %d events, want %d", n, messages)
	}
	follow := func(t *testing.T, prefix string, args ...string) {
		args = append([]string{"stream", "--topic", "clicks", "--kind", "events", "--consumer", "one", "--server", s.url,
			"--dead-letters", filepath.Join(t.TempDir(), "dead.ndjson")}, args...)
		r := rand.New(rand.NewPCG(12, 28))
		all, before, middle := kills(t), 0, 0
		for i := range all {
			// The moment is a number of events, so that kills spread over the stream on any machine, and some time more, so
			// that they meet all steps of a batch. Users take turns: the events of one tell those of all.
			target := before + r.IntN(max(1, 2*(n-before)/(all-i+1)))
			more := time.Duration(r.Int64N(int64(20 * time.Millisecond)))
			limit := time.Now().Add(time.Minute)
			killedOnce(t, func() bool {
				if users*len(eventsOf(prefix+"0")) < min(target+1, n) && time.Now().Before(limit) {
					return false
				}
				time.Sleep(more)
				return true
			}, args...)
			got, _ := events(prefix)
			if got < before {
				t.Fatalf("after a kill there are %d events, before there were %d", got, before)
			}
			if got > before && got < n {
				middle++
			}
			before = got
		}
		t.Logf("%d of %d kills were in the middle of the stream", middle, all)
		cmd := exec.Command(binary, args...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}()
		limit := time.Now().Add(2 * time.Minute)
		for {
			got, all := events(prefix)
			if got > n {
				t.Fatalf("%d events came of %d", got, n)
			}
			if got == n {
				if all != want {
					t.Error("the events differ from those of a stream that is left alone")
				}
				return
			}
			if time.Now().After(limit) {
				t.Fatalf("%d of %d events came", got, n)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	t.Run("kafka", func(t *testing.T) {
		brokers, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "clicks"))
		if err != nil {
			t.Fatal(err)
		}
		defer brokers.Close()
		client, err := kgo.NewClient(kgo.SeedBrokers(brokers.ListenAddrs()...), kgo.DefaultProduceTopic("clicks"))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		var records []*kgo.Record
		for _, l := range lines("k") {
			records = append(records, kgo.StringRecord(l))
		}
		if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		follow(t, "k", "--kafka", brokers.ListenAddrs()[0])
	})
	t.Run("redis", func(t *testing.T) {
		server, err := redisserver.Start()
		if errors.Is(err, redisserver.ErrAbsent) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer server.Stop()
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr}, DisableCache: true})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		var adds rueidis.Commands
		for _, l := range lines("r") {
			adds = append(adds, client.B().Xadd().Key("clicks").Id("*").FieldValue().FieldValue("value", l).Build())
		}
		for _, r := range client.DoMulti(t.Context(), adds...) {
			if err := r.Error(); err != nil {
				t.Fatal(err)
			}
		}
		follow(t, "r", "--redis", server.Addr)
	})
}
