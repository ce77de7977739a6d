package server

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sinceData returns the time since the last bytes of a connection arrived, whether they were read or not. On a busy
// machine a request may wait in the kernel for longer than it takes to compute. It returns 0 if the kernel does not
// report the time.
func sinceData(c syscall.Conn) time.Duration {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	var ago time.Duration
	_ = raw.Control(func(fd uintptr) { // fails only when the connection is closed
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			ago = time.Duration(info.Last_data_recv) * time.Millisecond
		}
	})
	return ago
}
