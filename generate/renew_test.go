package generate

import (
	"fmt"
	"sync"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/prompt"
)

// Changes that come while Renew finds none stay the keeper's, and none is lost: under the race detector, Renew reads
// nothing that a change writes.
func TestRenewBesideChanges(t *testing.T) {
	c := catalog.New(catalog.Options{})
	codes := prompt.Codes{FirstToken: []int32{0, 10}, Size: []int32{10, 10}}
	b := must(prompt.New(prompt.Config{Codes: codes}, words{}, 100))
	k := must(NewKeeper(c, KeeperOptions{}, Target{"m", &Generator{Prompt: b}, &packer{1 << 30}}))
	const items = 200
	var writers sync.WaitGroup
	done := make(chan struct{})
	for w := range 2 {
		writers.Go(func() {
			for i := range items {
				must(c.PutItem(&grebev1.Item{Id: fmt.Sprint(w, "-", i), Codes: codesOf(int32(i%10), int32(i/10%10))}))
			}
		})
	}
	go func() { writers.Wait(); close(done) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		k.Renew()
	}
	k.Renew()
	if n := k.history.Head().Items; n != 2*items {
		t.Errorf("the newest version has %d items, want %d", n, 2*items)
	}
}
