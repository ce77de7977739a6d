package server

import (
	"net/http"
	"testing"
)

// Requests for lists run one at a time, take no slots of rankings while they wait, and are refused if too many wait.
func TestListsWaitForEachOther(t *testing.T) {
	w := newWorld(t, func(c *setup) { c.MaxInFlight = 1 })
	leave, err := w.lists.wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	statuses := make(chan int)
	ask := func() { statuses <- w.ask("GET", "/v1/items?limit=1000", "").Code }
	const all = 200
	for range all {
		go ask()
	}
	for range all - (maxWaiting - 1) { // one is running
		if got := <-statuses; got != http.StatusTooManyRequests {
			t.Fatalf("while %d wait: %d, want 429", maxWaiting, got)
		}
	}
	if rec := w.ask("POST", "/v1/rank", goodRank); rec.Code != http.StatusOK {
		t.Errorf("a ranking beside them: %d %s", rec.Code, rec.Body)
	}
	leave()
	for range maxWaiting - 1 {
		if got := <-statuses; got != http.StatusOK {
			t.Errorf("a list that waited: %d", got)
		}
	}
	if n := w.lists.waiting.Load(); n != 0 {
		t.Errorf("%d are left in line", n)
	}
}
