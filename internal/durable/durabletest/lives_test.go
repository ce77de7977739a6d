package durabletest

import (
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// number is what a counter owes its callers.
type number struct{ sure, underWay byte }

// Copy implements Lives.
func (n *number) Copy() *number { return &number{n.sure, n.underWay} }

// counter keeps a number in a file of one byte. careful: it writes what it finds once more before anybody sees it.
type counter struct {
	careful bool
	faults  []string
}

func (c *counter) open(d *Disk) (f vfs.File, n byte, err error) {
	if f, err = d.FS().OpenReadWrite("a/n", vfs.WriteCategoryUnspecified); err != nil {
		return nil, 0, err
	}
	b := make([]byte, 1)
	if _, err = f.ReadAt(b, 0); err == io.EOF {
		b[0], err = 0, nil
	}
	if c.careful && err == nil {
		_, err = f.WriteAt(b, 0)
	}
	if err == nil {
		err = f.Sync()
	}
	if dir, opened := d.FS().OpenDir("a"); err == nil && opened == nil {
		err = dir.Sync()
	}
	return f, b[0], err
}

func (c *counter) check(d *Disk, owed *number, what string) {
	_, n, err := c.open(d)
	if err != nil || n != owed.sure && (owed.underWay == 0 || n != owed.underWay) {
		c.faults = append(c.faults, fmt.Sprintf("%s: %d, want %d, %v", what, n, owed.sure, err))
	}
	owed.sure, owed.underWay = n, 0
}

func (c *counter) use(d *Disk, owed *number, what string) {
	f, _, err := c.open(d)
	for n := byte(1); n < 5 && err == nil; n++ {
		owed.underWay = n
		if _, err = f.WriteAt([]byte{n}, 0); err == nil {
			err = f.Sync()
		}
		owed.sure, owed.underWay = n, 0
	}
	if err != nil {
		c.faults = append(c.faults, fmt.Sprintf("%s: %v", what, err))
	}
}

// Lives finds that a process takes pages for durable which a sync left clean when it failed, right before a kill; of
// one that writes them once more it finds nothing.
func TestLivesTryAKillRightAfterAFailedSync(t *testing.T) {
	for _, careful := range []bool{false, true} {
		c := &counter{careful: careful}
		l := &Lives[*number]{Use: c.use, Check: c.check, Every: 1}
		l.Run(NewDiskWith("a"), &number{}, rand.New(rand.NewPCG(1, 1)), "counter")
		if (len(c.faults) == 0) != careful || l.Tried() < 30 {
			t.Errorf("careful %v: %d times tried, faults:\n%s", careful, l.Tried(), strings.Join(c.faults, "\n"))
		}
		for _, fault := range c.faults {
			if !strings.Contains(fault, ", which fails: a kill, a restart and a power cut") {
				t.Errorf("careful %v: %s", careful, fault)
			}
		}
	}
}

// A test run tries few sequences, a campaign as many as the environment says.
func TestSequences(t *testing.T) {
	t.Setenv("GREBE_POWERLOSS", "")
	if n, campaign := Sequences(3); n != 3 || campaign {
		t.Errorf("%d, %v in a test run", n, campaign)
	}
	t.Setenv("GREBE_POWERLOSS", "20")
	if n, campaign := Sequences(3); n != 20 || !campaign {
		t.Errorf("%d, %v in a campaign", n, campaign)
	}
}
