package overload

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// startApart starts a command on all cores of this process but the last, and moves this process to that one. With one
// core, all share it.
func startApart(cmd *exec.Cmd) error {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return fmt.Errorf("read the cores of this process: %w", err)
	}
	if all.Count() < 2 {
		return cmd.Start()
	}
	last := 0
	for i := range 1 << 10 {
		if all.IsSet(i) {
			last = i
		}
	}
	others := all
	others.Clear(last)
	var own unix.CPUSet
	own.Set(last)
	// A child has the cores of the thread that starts it, and a new thread those of the one that makes it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.SchedSetaffinity(0, &others); err != nil {
		return fmt.Errorf("choose the server's cores: %w", err)
	}
	failed := cmd.Start()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range tasks {
		if tid, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.SchedSetaffinity(tid, &own) // a thread may have ended
		}
	}
	runtime.GOMAXPROCS(1)
	return failed
}
