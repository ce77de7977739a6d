package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// send sends a request to a node and returns the status of the answer.
func (m *member) send(method, path, body string) (status int, answer []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+m.listen+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	resp, err := trialClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}

// customer is a user whose KV nodes keep.
type customer struct {
	id     string
	text   string
	inline bool // requests give the text: the catalog does not have the user
}

// put puts a user of the catalog.
func (c *trial) put(m *member, u *customer) {
	c.Helper()
	if u.inline {
		return
	}
	if status, answer, err := m.send(http.MethodPut, "/v1/users/"+u.id,
		fmt.Sprintf(`{"id":%q,"text":%q}`, u.id, u.text)); err != nil || status/100 != 2 {
		c.Fatalf("put %s at %s: %d %s %v", u.id, m.id, status, answer, err)
	}
}

// remove deletes a user.
func (c *trial) remove(m *member, u *customer) {
	c.Helper()
	status, answer, err := m.send(http.MethodDelete, "/v1/users/"+u.id, "")
	if want := status/100 == 2 || u.inline && status == http.StatusNotFound; err != nil || !want {
		c.Fatalf("delete %s at %s: %d %s %v", u.id, m.id, status, answer, err)
	}
}

// rank ranks for a user. It returns the node that answered, and where the user's KV came from.
func (c *trial) rank(m *member, u *customer) (node string, cached int, source string) {
	c.Helper()
	user := map[string]any{"id": u.id}
	if u.inline {
		user["text"] = u.text
	}
	body, _ := json.Marshal(map[string]any{"user": user, "candidates": []map[string]any{{"id": "i1"}, {"id": "i2"}},
		"prefix": "user", "explain": true})
	a, err := (&question{path: "/v1/rank", body: body}).ask(m.listen)
	if err != nil {
		c.Fatal(err)
	}
	for _, p := range a.Parts {
		if p.Kind == "user" {
			return a.Node, p.Cached, p.Source
		}
	}
	c.Fatalf("the answer for %s has no part of the user: %+v", u.id, a)
	return "", 0, ""
}

// everywhere ranks for a user until all nodes have answered.
func (c *trial) everywhere(u *customer) {
	c.Helper()
	seen := map[string]bool{}
	for range 10 * len(c.nodes) {
		node, _, _ := c.rank(c.nodes[0], u)
		if seen[node] = true; len(seen) == len(c.nodes) {
			return
		}
	}
	c.Fatalf("of %d nodes only %v answer", len(c.nodes), seen)
}

var userEntries = regexp.MustCompile(`(?m)^grebe_kv_entries\{[^}]*kind="user",tier="(?:device|host)"\} (\d+)`)

// users returns how many users' KV a node has in memory, as it says itself.
func (c *trial) users(m *member) (n int) {
	c.Helper()
	data, err := fetch(http.MethodGet, "http://"+m.admin+"/metrics", nil)
	if err != nil {
		c.Fatal(err)
	}
	for _, f := range userEntries.FindAllSubmatch(data, -1) {
		k, _ := strconv.Atoi(string(f[1]))
		n += k
	}
	return n
}

// copies returns how often a node has copied the catalog of another one, as its log says.
func (c *trial) copies(m *member) int {
	c.Helper()
	data, err := os.ReadFile(m.log)
	if err != nil {
		c.Fatal(err)
	}
	return bytes.Count(data, []byte("copying the leader's catalog"))
}

// Users are deleted while a node is down that has KV of them on its disk. Nobody uses that KV: not the nodes that were
// up, and not the one that returns, nor others through it. Users who were not deleted are found on its disk, unless the
// log with the deletions was erased before it returned: then it copies the catalog, and drops the KV of all users,
// because it cannot know who was deleted.
func TestTrialDeletedUser(t *testing.T) {
	c := newTrial(t, 3, "cluster.routing=round-robin", "cache.disk=64MiB")
	away, up := c.nodes[2], c.nodes[:2]
	rounds, used, found, copied := 0, 0, 0, 0
	// A round in which it copied the catalog shows nothing of its disk: another one follows, at most ten.
	for ; rounds < long(20, 1) || found == 0 && copied == rounds && rounds < long(20, 1)+10; rounds++ {
		round := rounds
		var kept, gone []*customer
		for i := range 16 {
			u := &customer{id: fmt.Sprintf("r%du%d", round, i),
				text: fmt.Sprintf("%d likes tea and is customer %d of round %d.", i*7919, i, round), inline: i%2 == 1}
			if i < 4 {
				kept = append(kept, u)
			} else {
				gone = append(gone, u)
			}
		}
		others := c.users(c.nodes[0])
		for _, u := range slices.Concat(kept, gone) {
			c.put(c.nodes[0], u)
			c.everywhere(u)
		}
		c.end(away, syscall.SIGTERM) // it writes what it has to its disk
		c.launch(away)
		c.settled(30*time.Second, c.nodes...)
		c.end(away, syscall.SIGKILL)
		for i, u := range gone {
			c.remove(up[i%2], u)
		}
		copies := c.copies(away)
		c.launch(away) // soon: a second after a deletion the log is erased
		for _, m := range up {
			c.until(10*time.Second, func() string {
				if n := c.users(m); n != others+len(kept) {
					return fmt.Sprintf("%s has KV of %d users, want %d", m.id, n, others+len(kept))
				}
				return ""
			})
		}
		first, later := gone[:6], gone[6:]
		for i, u := range first {
			c.put(up[i%2], u)
			if node, cached, source := c.rank(up[i%2], u); cached > 0 {
				t.Errorf("%s was deleted, and %s finds %d tokens: %s", u.id, node, cached, source)
			}
		}
		c.settled(30*time.Second, c.nodes...)
		copied += c.copies(away) - copies
		for i, u := range later {
			c.put(c.nodes[i%3], u)
			node, cached, source := c.rank(c.nodes[i%3], u)
			if cached > 0 {
				t.Errorf("%s was deleted while %s was down, and %s finds %d tokens: %s", u.id, away.id, node, cached, source)
			}
			if node == away.id {
				used++
			}
		}
		for _, u := range kept {
			for range 9 {
				if node, cached, source := c.rank(away, u); node == away.id {
					if cached > 0 && source == "disk" {
						found++
					}
					break
				}
			}
		}
		c.running()
		for _, u := range slices.Concat(kept, gone) {
			c.remove(c.nodes[0], u)
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	t.Logf("%d rounds, %d users deleted while a node was down: none was found, %d times by that node; %d users who "+
		"stayed were found on its disk; it copied the catalog %d times",
		rounds, 12*rounds, used, found, copied)
	if used == 0 || found == 0 {
		t.Errorf("it shows nothing: %d rankings of deleted users on the node that was down, %d users found on its disk", used,
			found)
	}
}
