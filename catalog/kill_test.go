package catalog

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
)

// writeUntilKilled is the child: several writers, each with ids of its own, say on standard output
// what was acknowledged: writer, number of the write.
func writeUntilKilled(dir string) {
	c, err := Open(dir, Options{SweepDelay: 1})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	done := make(chan struct{})
	for k := range 4 {
		go func() {
			from := 0
			if u, ok := c.User(fmt.Sprint("u", k)); ok {
				from = int(u.Events[len(u.Events)-1].Time)
			}
			for i := from + 1; ; i++ {
				if err := writeNumbered(c, k, i); err != nil {
					fmt.Println("error", err)
					close(done)
				}
				fmt.Println("ok", k, i)
			}
		}()
	}
	<-done
	os.Exit(1)
}

// writeNumbered makes write i of writer k: an event that counts, an item that is put, and every other
// one deleted. It is acknowledged when all of them are.
func writeNumbered(c *Catalog, k, i int) error {
	text := strconv.Itoa(i)
	item := fmt.Sprintf("k%d-%d", k, i%8)
	if i%2 == 0 {
		if _, err := c.DeleteItem(item); err != nil {
			return err
		}
	} else if _, err := c.PutItem(&grebev1.Item{Id: item, Text: &text}); err != nil {
		return err
	}
	_, _, _, err := c.AppendEvents(fmt.Sprint("u", k), []*grebev1.Event{{Item: item, Time: int64(i)}})
	return err
}

// TestKill kills a writing process 20 times at random moments. What it acknowledged must be there.
func TestKill(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(7, 8))
	var acked [4]int
	for round := range 20 {
		killAfter(t, self, dir, r.IntN(60), &acked)
		c := open(t, dir, Options{})
		for k := range acked {
			acked[k] = checkNumbered(t, c, round, k, acked[k])
		}
		shut(t, c)
	}
	if acked[0]+acked[1]+acked[2]+acked[3] < 20 {
		t.Errorf("only %v writes were acknowledged", acked)
	}
}

// killAfter starts the child, reads n acknowledgements and kills it; acked gets the last of each writer.
func killAfter(t *testing.T, self, dir string, n int, acked *[4]int) {
	t.Helper()
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "GREBE_TEST_KILLED_WRITER="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(out)
	for i := 0; s.Scan(); i++ {
		var k, w int
		if strings.HasPrefix(s.Text(), "error") {
			t.Errorf("the child: %s", s.Text())
		}
		// The last line may be cut off: such a write counts as not acknowledged.
		if _, err := fmt.Sscanf(s.Text()+"\n", "ok %d %d\n", &k, &w); err == nil && w > acked[k] {
			acked[k] = w
		}
		if i == n {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	cmd.Wait() // killed: that is the point
}

// checkNumbered returns the last write that is there: the next process goes on from it, whether it was acknowledged or
// not.
func checkNumbered(t *testing.T, c *Catalog, round, k, acked int) int {
	t.Helper()
	u, ok := c.User(fmt.Sprint("u", k))
	if !ok && acked == 0 {
		return 0
	}
	if !ok {
		t.Fatalf("round %d: user %d is gone after %d writes", round, k, acked)
	}
	// Events count up without a gap, to what was acknowledged or one further.
	last := int64(0)
	for i, e := range u.Events {
		if i > 0 && e.Time != last+1 {
			t.Fatalf("round %d: event %d comes after %d", round, e.Time, last)
		}
		last = e.Time
	}
	if last != int64(acked) && last != int64(acked)+1 {
		t.Fatalf("round %d: writer %d acknowledged %d, but the last event is %d", round, k, acked, last)
	}
	// Items are as the last writes of each left them; the write after the last event may be there.
	for i := int(last); i > 0 && i > int(last)-7; i-- {
		id := fmt.Sprintf("k%d-%d", k, i%8)
		it, ok := c.Item(id)
		if ok != (i%2 == 1) || ok && it.Text != strconv.Itoa(i) {
			t.Fatalf("round %d: after write %d of %d item %s is %v", round, i, last, id, it)
		}
	}
	return int(last)
}
