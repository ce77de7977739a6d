package durabletest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"

	"grebe/internal/durable"
)

// Sequences returns how many random sequences a power-loss test tries: few in a test run, GREBE_POWERLOSS of them in
// `make powerloss`. The first of these is to be interrupted at every change, see Lives.Every.
func Sequences(few uint64) (n uint64, campaign bool) {
	n, err := strconv.ParseUint(os.Getenv("GREBE_POWERLOSS"), 10, 64)
	if err != nil {
		return few, false
	}
	return n, true
}

// Lives tries kills and power cuts on something that keeps its state on a disk. O is what it owes its callers: what
// they were told is there, and what a call that has not returned may change.
type Lives[O interface{ Copy() O }] struct {
	// Use opens it on a disk, compares it with what it owes as Check does, makes changes, notes what it owes for them
	// and closes it.
	Use func(d *Disk, owed O, what string)
	// Check opens it on a disk, compares it with what it owes and closes it. Since callers can see what is there
	// then, it is owed from then on.
	Check func(d *Disk, owed O, what string)
	// Fail returns an error for changes that fail; nil: none does.
	Fail func(kind durable.Kind, path string) error
	// Every is how many changes are made between two moments at which kills and power cuts are tried. At 1 a restart
	// and then a power cut is tried too, at every change.
	Every int

	tried int
}

// Tried returns how many times it was opened after a kill or a power cut.
func (l *Lives[O]) Tried() int { return l.tried }

// moment is a disk as a kill leaves it, and what was owed then.
type moment[O any] struct {
	disk *Disk
	owed O
	at   string
	// failed: the kill came right after a sync that failed. The process that follows finds pages that are clean, not
	// durable, and no sign of it.
	failed bool
}

// Run has one process live on a disk, and tries kills and power cuts at its changes: a power cut, a kill, and a kill
// with a power cut after the restart. It returns what one of them leaves, for the next process.
func (l *Lives[O]) Run(d *Disk, owed O, r *rand.Rand, what string) (*Disk, O) {
	var mu sync.Mutex
	var moments []moment[O]
	n := 0
	d.Before = func(kind durable.Kind, path string) error {
		mu.Lock()
		defer mu.Unlock()
		if n++; n%max(1, l.Every) == 0 {
			o := owed.Copy() // before the disk: what is acknowledged meanwhile does not count
			at := fmt.Sprintf("%s: change %d, %s of %s", what, n, kind, path)
			moments = append(moments, moment[O]{d.Kill(), o, at, false})
			if kind == durable.OpSync {
				moments = append(moments, moment[O]{d.killFailing(path), o, at + ", which fails", true})
			}
		}
		if l.Fail == nil {
			return nil
		}
		return l.Fail(kind, path)
	}
	l.Use(d, owed, what)
	mu.Lock()
	defer mu.Unlock()
	d.Before = nil
	for _, m := range moments {
		if !m.failed { // else the sync changes nothing for a power cut
			for _, how := range []*rand.Rand{nil, r} {
				l.check(m.disk.Cut(how), m.owed.Copy(), m.at+": a power cut")
			}
		}
		if m.failed || l.Every == 1 {
			next, seen := m.disk.Kill(), m.owed.Copy()
			l.check(next, seen, m.at+": a kill")
			l.check(next.Cut(nil), seen, m.at+": a kill, a restart and a power cut")
		}
	}
	m := moments[r.IntN(len(moments))]
	if r.IntN(2) == 0 {
		return m.disk.Cut(r), m.owed
	}
	return m.disk, m.owed // killed
}

func (l *Lives[O]) check(d *Disk, owed O, what string) {
	l.tried++
	l.Check(d, owed, what)
}

// killFailing is Kill right after a sync of a file that failed.
func (d *Disk) killFailing(path string) *Disk {
	c := d.Kill()
	if n := c.find(path); n != nil {
		n.pages.FailSync()
	}
	return c
}

// NewDiskWith returns a disk with an empty folder, which is durable.
func NewDiskWith(folder string) *Disk {
	d := NewDisk()
	n := newFolder()
	d.root.set(folder, n)
	d.root.durable[folder], d.root.changes = n, nil
	return d
}
